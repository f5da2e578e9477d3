#!lua
-- Write units, each whole or not at all.  Returns the buckets that are lost to it.
-- KEYS: number of this process's last commit.
-- ARGV: prefix, number of this one, seconds that counters of erased buckets are kept,
--       units as msgpack: {epochs by bucket, {bucket, write, ...}, ms to keep by bucket,
--       those that are loose},
--       values, which writes name by their place.
local prefix = ARGV[1]
local function key(kind, bucket) return prefix .. ':' .. kind .. ':' .. bucket end

local write = {}
function write.put(b, name, at) redis.call('HSET', key('v', b), name, ARGV[4 + at]) end
function write.drop(b, name) redis.call('HDEL', key('v', b), name) end
function write.append(b, s, at)
  local newest = redis.call('XREVRANGE', key('l', b), '+', '-', 'COUNT', 1)[1]
  if not newest or tonumber(string.match(newest[1], '^%d+')) < s then
    redis.call('XADD', key('l', b), string.format('%.0f-0', s), 'e', ARGV[4 + at])
  end
end
function write.trim(b, s) redis.call('XTRIM', key('l', b), 'MINID', string.format('%.0f', s + 1)) end
function write.keep() end
function write.erase(b)
  redis.call('DEL', key('v', b), key('l', b), key('o', b))
  redis.call('EXPIRE', key('e', b), ARGV[3])
end

local done = tonumber(redis.call('GET', KEYS[1]) or '0') >= tonumber(ARGV[2])
local lost = {}
for _, unit in ipairs(cmsgpack.unpack(ARGV[4])) do
  local epochs, writes, kept, loose = unit[1], unit[2], unit[3], unit[4]
  local ours, gone = true, {}
  for bucket, epoch in pairs(epochs) do
    if lost[bucket] or tonumber(redis.call('GET', key('e', bucket)) or '0') > epoch then
      gone[bucket] = true
      ours = ours and loose[bucket]
    end
  end
  for bucket in pairs(ours and gone or epochs) do lost[bucket] = true end
  if ours and not done then
    for bucket, epoch in pairs(epochs) do
      if not gone[bucket] then redis.call('SET', key('e', bucket), string.format('%.0f', epoch)) end
    end
    for _, w in ipairs(writes) do
      if not gone[w[1]] then write[w[2]](w[1], w[3], w[4]) end
    end
    for bucket, ms in pairs(kept) do
      if not gone[bucket] then
        redis.call('PEXPIRE', key('v', bucket), ms)
        redis.call('PEXPIRE', key('l', bucket), ms)
        redis.call('EXPIRE', key('e', bucket), ARGV[3])
      end
    end
  end
end
-- One that comes late must not let others through that come later still.
if not done then redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3]) end
local names = {}
for bucket in pairs(lost) do names[#names + 1] = bucket end
return names
