// What a client of MQTT.js does with a node: the same in Node.js and in a browser. It returns what it saw.

const EXPIRY = { sessionExpiryInterval: 600 };

async function play(mqtt, url, protocolVersion, options) {
  const v5 = protocolVersion === 5;
  const opened = [];

  const open = (clientId, more = {}) => new Promise((resolve, reject) => {
    const client = mqtt.connect(url, { clientId, protocolVersion, reconnectPeriod: 0, ...options, ...more });
    const waiting = [];
    const messages = [];
    client.on('message', (topic, payload, packet) => {
      messages.push({ topic, payload, packet });
      while (waiting.length && messages.length) waiting.shift()(messages.shift());
    });
    client.next = () => new Promise((take) => {
      if (messages.length) take(messages.shift());
      else waiting.push(take);
    });
    client.once('error', reject);
    client.once('connect', (connack) => resolve({ client, connack }));
    opened.push(client);
  });
  const shown = ({ topic, payload, packet }) => [topic, payload.toString(), packet.qos, packet.retain];

  const found = {};
  const { client: subscriber } = await open('subscriber', v5 ? { properties: { topicAliasMaximum: 4 } } : {});
  const { client: publisher } = await open('publisher', v5 ? { autoAssignTopicAlias: true } : {});

  found.granted = (await subscriber.subscribeAsync({ 'home/+/temp': { qos: 2 }, exact: { qos: 1 } })).map((g) => g.qos);
  found.received = [];
  for (const qos of [0, 1, 2]) {
    await publisher.publishAsync('home/bath/temp', `grüße ${qos}`, { qos });
    found.received.push(shown(await subscriber.next()));
  }
  await publisher.publishAsync('exact', 'x', { qos: 2 });
  found.received.push(shown(await subscriber.next()));

  // Often enough for aliases on both ways. MQTT.js shows a message of QoS 2 with its PUBREL: order is that of each QoS.
  const count = 300;
  const sent = [];
  for (let i = 0; i < count; i += 1) sent.push(publisher.publishAsync('home/hall/temp', String(i), { qos: i % 3 }));
  const last = [-3, -2, -1];
  found.ordered = 0;
  for (let i = 0; i < count; i += 1) {
    const { topic, payload, packet } = await subscriber.next();
    const number = Number(payload.toString());
    if (topic === 'home/hall/temp' && number === last[packet.qos] + 3) found.ordered += 1;
    last[packet.qos] = number;
  }
  await Promise.all(sent);

  const big = 'x'.repeat(300000);
  await publisher.publishAsync('exact', big, { qos: 1 });
  found.big = (await subscriber.next()).payload.toString() === big;

  await publisher.publishAsync('state/a', 'on', { qos: 1, retain: true });
  await publisher.publishAsync('state/b', 'gone', { qos: 1, retain: true });
  await publisher.publishAsync('state/b', '', { qos: 1, retain: true });
  await subscriber.subscribeAsync('state/#', { qos: 1 });
  found.retained = shown(await subscriber.next());
  await publisher.publishAsync('state/c', 'live', { qos: 1, retain: true });
  found.live = shown(await subscriber.next());
  await subscriber.unsubscribeAsync('state/#');

  const kept = v5 ? { clean: false, properties: EXPIRY } : { clean: false };
  const { client: away } = await open('away', kept);
  await away.subscribeAsync('missed/#', { qos: 2 });
  await away.endAsync();
  for (const qos of [1, 2]) await publisher.publishAsync('missed/it', `while away ${qos}`, { qos });
  const { client: back, connack } = await open('away', kept);
  found.present = connack.sessionPresent;
  found.missed = [shown(await back.next()), shown(await back.next())];

  await subscriber.subscribeAsync('wills/+', { qos: 1 });
  const { client: dying } = await open('dying', { will: { topic: 'wills/dying', payload: 'broken', qos: 1, retain: false } });
  dying.stream.destroy();
  found.will = shown(await subscriber.next());

  if (v5) found.answered = await request(subscriber, publisher);
  await Promise.all(opened.map((client) => client.endAsync(true)));
  return found;
}

// A request and its answer, with everything that MQTT 5 lets travel beside them.
async function request(responder, requester) {
  await responder.subscribeAsync('requests/+', { qos: 1, properties: { subscriptionIdentifier: 7 } });
  await requester.subscribeAsync('answers/mine', { qos: 1 });
  const user = { a: ['1', '2'], b: 'ü' };
  await requester.publishAsync('requests/add', '1+1', {
    qos: 1,
    properties: {
      responseTopic: 'answers/mine',
      correlationData: new TextEncoder().encode('17'),
      contentType: 'text/plain',
      messageExpiryInterval: 60,
      payloadFormatIndicator: true,
      userProperties: user,
    },
  });
  const asked = (await responder.next()).packet.properties;
  await responder.publishAsync(asked.responseTopic, '2', { qos: 1, properties: { correlationData: asked.correlationData } });
  const answer = await requester.next();
  return {
    answer: answer.payload.toString(),
    correlation: new TextDecoder().decode(answer.packet.properties.correlationData),
    contentType: asked.contentType,
    identifier: asked.subscriptionIdentifier,
    text: asked.payloadFormatIndicator,
    expires: asked.messageExpiryInterval > 0 && asked.messageExpiryInterval <= 60,
    user: asked.userProperties,
  };
}

if (typeof module !== 'undefined') module.exports = { play };
