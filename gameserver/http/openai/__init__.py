"""The API of OpenAI's servers, spoken by our engine: chat, completions, embeddings, models."""
