// Ask a model of the gateway over HTTP. Runs in Node.js 18 or newer and in browsers, without packages.
export async function ask(gateway, model, inputs) {
  const response = await fetch(`${gateway}/v2/models/${model}/infer`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ inputs }),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(`${response.status}: ${answer.error}`);
  return answer.outputs;
}

// 100 samples of six values, acceleration without gravity and rotation: a watch that does not move
export const rest = { name: "motion", datatype: "FP32", shape: [1, 100, 6], data: Array(600).fill(0) };

if (globalThis.process?.argv) {
  const gateway = process.argv[2] ?? "http://127.0.0.1:8000";
  for (const { name, shape, data } of await ask(gateway, "activity", [rest])) console.log(name, JSON.stringify(shape), JSON.stringify(data));
  await ask(gateway, "no-such-model", [rest]).catch((error) => console.log(error.message));
}
