#!lua
-- Hold on to leases, and say that this node lives.  Returns the buckets that are somebody else's.
-- KEYS: of this node.  ARGV: prefix, node, its url, lease in ms, {bucket, epoch} as msgpack.
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
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
return lost
