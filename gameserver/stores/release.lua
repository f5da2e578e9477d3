#!lua
-- Let go of leases that are ours.  KEYS: of this node.  ARGV: prefix, {bucket, epoch} as msgpack.
redis.call('DEL', KEYS[1])
for _, held in ipairs(cmsgpack.unpack(ARGV[2])) do
  local bucket, epoch = held[1], held[2]
  if tonumber(redis.call('GET', ARGV[1] .. ':e:' .. bucket) or '0') == epoch then
    redis.call('DEL', ARGV[1] .. ':o:' .. bucket)
  end
end
return redis.status_reply('OK')
