-- What wrk sends: the lines of a file, each a path, a tab and a body, in turns; and its report.

local requests, turn = {}, 0

function init(args)
  for line in io.lines(args[1]) do
    local path, body = line:match("^(.-)\t(.*)$")
    requests[#requests + 1] = wrk.format("POST", path, { ["Content-Type"] = "application/json" }, body)
  end
end

function request()
  turn = turn % #requests + 1
  return requests[turn]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '{"requests": %d, "seconds": %f, "p50": %f, "p99": %f, "failed": %d}\n',
    summary.requests, summary.duration / 1e6,
    latency:percentile(50) / 1e6, latency:percentile(99) / 1e6,
    errors.status + errors.connect + errors.read + errors.write + errors.timeout
  ))
end
