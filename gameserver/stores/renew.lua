#!lua
-- Hold on to leases, and say that this node lives.
-- KEYS: this node's card, names of all nodes.
-- ARGV: prefix, node, its url, lease in ms, {bucket, epoch} as msgpack, the card.
-- Returns the buckets that are somebody else's, and name and card of every node that lives.
redis.call('SET', KEYS[1], ARGV[6], 'PX', ARGV[4])
redis.call('SADD', KEYS[2], ARGV[2])
local lost = {}
for _, held in ipairs(cmsgpack.unpack(ARGV[5])) do
  local bucket, epoch = held[1], held[2]
  local lease = ARGV[1] .. ':o:' .. bucket
  if tonumber(redis.call('GET', ARGV[1] .. ':e:' .. bucket) or '0') ~= epoch then
    lost[#lost + 1] = bucket
  else
    redis.call('HSET', lease, 'node', ARGV[2], 'url', ARGV[3], 'epoch', string.format('%.0f', epoch))
    redis.call('PEXPIRE', lease, ARGV[4])
  end
end
local cards = {}
for _, node in ipairs(redis.call('SMEMBERS', KEYS[2])) do
  local card = redis.call('GET', ARGV[1] .. ':n:' .. node)
  if card then
    cards[#cards + 1] = node
    cards[#cards + 1] = card
  else
    redis.call('SREM', KEYS[2], node)
  end
end
return {lost, cards}
