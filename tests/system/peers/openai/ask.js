// Asks the gateway as npm's client of OpenAI's API does, and prints one JSON document of what it got.
// usage: node ask.js URL
// usage: node ask.js URL MODEL: the vectors of two texts by MODEL
const { OpenAI } = require('openai');

async function main(baseURL, embedding) {
  const client = new OpenAI({ baseURL, apiKey: 'any', maxRetries: 0 });
  if (embedding) {
    const { data } = await client.embeddings.create({ model: embedding, input: ['a', 'bb'] });
    console.log(JSON.stringify(data.map((each) => each.embedding)));
    return;
  }
  const messages = [{ role: 'user', content: 'w' }];
  const found = { models: (await client.models.list()).data.map((each) => each.id) };
  const chat = await client.chat.completions.create({ model: 'writer', messages, max_tokens: 2, n: 2 });
  found.chat = chat.choices.map((each) => each.message.content);
  found.usage = chat.usage;
  const asked = { model: 'writer', messages, max_tokens: 3, stream: true, stream_options: { include_usage: true } };
  found.parts = [];
  for await (const chunk of await client.chat.completions.create(asked)) {
    found.parts.push(chunk.choices[0]?.delta?.content ?? chunk.usage?.total_tokens ?? null);
  }
  const stream = await client.chat.completions.create({ ...asked, max_tokens: 1000000 });
  for await (const chunk of stream) break; // leaves: the client aborts its request
  found.text = (await client.completions.create({ model: 'writer', prompt: 'w', max_tokens: 2 })).choices[0].text;
  const input = { model: 'writer', input: 'w', max_output_tokens: 2 };
  found.response = (await client.responses.create(input)).output_text;
  found.events = [];
  for await (const event of await client.responses.create({ ...input, stream: true })) found.events.push(event.delta ?? event.type);
  found.errors = [];
  const broken = { model: 'writer', messages: [{ role: 'user', content: '{"prompt": "w", "fail_after": 1}' }], stream: true };
  for (const body of [{ model: 'writer', messages, temperature: 3 }, { model: 'nobody', messages }, broken]) {
    try {
      for await (const _ of await client.chat.completions.create({ ...body, stream: true }));
    } catch (error) {
      found.errors.push([error.constructor.name, error.status ?? null, error.code ?? null, error.param ?? null]);
    }
  }
  console.log(JSON.stringify(found));
}

main(process.argv[2], process.argv[3]);
