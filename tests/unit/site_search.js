// Asks the search of a built site, as its pages do: node site_search.js SITE < questions > pages of each, best first
const fs = require("fs"), path = require("path"), vm = require("vm")
const site = process.argv[2], workers = path.join(site, "assets/javascripts/workers")
const run = file => vm.runInThisContext(fs.readFileSync(file, "utf8"), { filename: file })
let hear, answer
globalThis.self = globalThis
globalThis.addEventListener = (_, listener) => { hear = listener }
globalThis.postMessage = message => answer(message.data)
globalThis.Worker = class { postMessage(message) { hear({ data: message }) } }
run(path.join(site, "assets/questions.js"))
run(path.join(workers, fs.readdirSync(workers).find(name => name.endsWith(".min.js"))))
const SETUP = 0, QUERY = 2, worker = new Worker()
const ask = (type, data) => new Promise(resolve => { answer = resolve; worker.postMessage({ type, data }) })
;(async () => {
  const found = {}
  const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"))
  await ask(SETUP, { ...index, options: { suggest: true } })
  for (const question of JSON.parse(fs.readFileSync(0, "utf8")))
    found[question] = (await ask(QUERY, question)).items.map(sections => sections[0].location.split("#")[0])
  console.log(JSON.stringify(found))
})()
