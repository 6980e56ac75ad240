// Follows a controller's changes with npm's EventSource, and prints one JSON line for each message.
// usage: TOKEN=… NODE_EXTRA_CA_CERTS=… node follow.js URL
// EventSource reconnects by itself where a connection breaks. An answer other than 200, such as a proxy's 502, ends it
// for good: a new one goes on with `after`.
const { EventSource } = require('eventsource');

const KINDS = ['device.event', 'alert.opened', 'alert.closed', 'rollout.fact', 'rollout.device_fact', 'position', 'gap'];
const headers = { Authorization: `Bearer ${process.env.TOKEN}` };
let last = '';

function follow(url) {
  const address = last ? `${url}?after=${last}` : url;
  const source = new EventSource(address, {
    fetch: (input, init) => fetch(input, { ...init, headers: { ...init.headers, ...headers } }),
  });
  for (const kind of KINDS) {
    source.addEventListener(kind, (message) => {
      last = message.lastEventId;
      console.log(JSON.stringify({ event: message.type, id: message.lastEventId, data: JSON.parse(message.data) }));
    });
  }
  source.addEventListener('error', (error) => {
    console.log(JSON.stringify({ event: 'error', status: error.code ?? 0, closed: source.readyState === EventSource.CLOSED }));
    if (source.readyState === EventSource.CLOSED && error.code >= 500) setTimeout(follow, 100, url);
  });
}

follow(process.argv[2]);
