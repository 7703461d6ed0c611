// node.js URL VERSION [CA]: plays the scenario in Node.js and prints what it saw as JSON.

const { readFileSync } = require('node:fs');
const mqtt = require('mqtt');
const { play } = require('./scenario.js');

const [url, version, ca] = process.argv.slice(2);
const options = ca ? { ca: readFileSync(ca) } : {};

play(mqtt, url, Number(version), options).then(
  (found) => console.log(JSON.stringify(found)),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
