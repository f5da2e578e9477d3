// Visits a server with the official client and prints what it saw, as one JSON object.
import OpenAI from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Hello?" }];
const seen = { model };

const chat = await client.chat.completions.create({ model, messages });
seen.chat = [chat.choices[0].message.content, chat.choices[0].finish_reason];

const stream = await client.chat.completions.create({
  model, messages, stream: true, stream_options: { include_usage: true },
});
seen.streamed = "";
for await (const chunk of stream) {
  seen.streamed += chunk.choices[0]?.delta?.content ?? "";
  if (chunk.usage) seen.tokens = chunk.usage.completion_tokens;
}

const tools = [{ type: "function", function: { name: "leave", parameters: { type: "object" } } }];
const final = await client.chat.completions.stream({ model, messages, tools }).finalChatCompletion();
const call = final.choices[0].message.tool_calls?.[0];
seen.call = call && [call.function.name, JSON.parse(call.function.arguments)];

seen.text = (await client.completions.create({ model, prompt: "Once" })).choices[0].text;

async function errorOf(request) {
  try {
    await request();
  } catch (error) {
    return [error.constructor.name, error.status, error.param ?? null];
  }
}
const create = (fields) => () => client.chat.completions.create({ model, messages, ...fields });
seen.errors = [
  await errorOf(create({ temperature: 9 })),
  await errorOf(create({ model: "none" })),
  await errorOf(() => new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 }).models.list()),
];

const leaving = await client.chat.completions.create({ model, messages, stream: true });
for await (const chunk of leaving) {
  leaving.controller.abort();
  break;
}
console.log(JSON.stringify(seen));
