// Refreshes from ROOT and BASE as anybody would, and writes TARGET to FOLDER; prints the path.
// usage: node download.js FOLDER ROOT BASE TARGET
const fs = require('fs');
const path = require('path');
const { Updater } = require('tuf-js');

async function main([folder, root, base, target]) {
  const metadataDir = path.join(folder, 'metadata');
  const targetDir = path.join(folder, 'targets');
  for (const needed of [metadataDir, targetDir]) fs.mkdirSync(needed, { recursive: true });
  if (!fs.existsSync(path.join(metadataDir, 'root.json'))) fs.copyFileSync(root, path.join(metadataDir, 'root.json'));
  const updater = new Updater({
    metadataBaseUrl: `${base}/metadata`,
    metadataDir,
    targetBaseUrl: `${base}/targets`,
    targetDir,
    config: { fetchRetry: 0 },
  });
  await updater.refresh();
  const found = await updater.getTargetInfo(target);
  if (!found) throw new Error(`${target} is not in the repository`);
  console.log(await updater.downloadTarget(found));
}

main(process.argv.slice(2)).catch((error) => {
  console.error(`${error.name}: ${error.message}`);
  process.exitCode = 1;
});
