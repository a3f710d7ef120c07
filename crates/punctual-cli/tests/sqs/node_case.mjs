// Unmodified @aws-sdk/client-sqs, and sqs-consumer on top of it, against a server that speaks SQS.
//
// Environment: SQS_ENDPOINT (http://HOST:PORT), AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY. Prints `ok NAME` for each case that passes.
// The first that fails ends the program with status 1. Arguments: names of cases (default: all).

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

// The packages are in the folder where `scripts/sqs` runs this program, and this file is elsewhere.
const require = createRequire(`${process.cwd()}/package.json`);
const sdk = require("@aws-sdk/client-sqs");
const { Consumer } = require("sqs-consumer");

const endpoint = process.env.SQS_ENDPOINT;
const region = "us-east-1";
// How long a consumer may take for all messages, in milliseconds. It takes this long only if something is broken.
const PATIENCE_MS = 30_000;

const connect = (secret = process.env.AWS_SECRET_ACCESS_KEY) =>
  new sdk.SQSClient({
    endpoint,
    region,
    maxAttempts: 1,
    credentials: { accessKeyId: process.env.AWS_ACCESS_KEY_ID, secretAccessKey: secret },
  });
const sqs = connect();
const call = (action, input) => sqs.send(new sdk[`${action}Command`](input));

async function create(name, attributes = {}) {
  const suffix = attributes.FifoQueue === "true" ? ".fifo" : "";
  const QueueName = `${name}-${randomUUID().slice(0, 8)}${suffix}`;
  return (await call("CreateQueue", { QueueName, Attributes: attributes })).QueueUrl;
}

async function receive(QueueUrl, more = {}) {
  return (await call("ReceiveMessage", { QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 10, ...more })).Messages ?? [];
}

const remove = (QueueUrl, message) => call("DeleteMessage", { QueueUrl, ReceiptHandle: message.ReceiptHandle });

async function receiveAll(url, number) {
  const bodies = [];
  while (bodies.length < number) {
    const found = await receive(url);
    assert.ok(found.length, `${bodies.length} of ${number} messages received, and then none within 10 s`);
    for (const message of found) {
      bodies.push(message.Body);
      await remove(url, message);
    }
  }
  assert.deepEqual(await receive(url, { WaitTimeSeconds: 1 }), [], "messages after the last one");
  return bodies;
}

async function counts(QueueUrl) {
  const names = ["", "NotVisible", "Delayed"].map((what) => `ApproximateNumberOfMessages${what}`);
  const { Attributes } = await call("GetQueueAttributes", { QueueUrl, AttributeNames: names });
  return names.map((name) => Number(Attributes[name]));
}

const refused = (promise, name) => assert.rejects(promise, (error) => {
  assert.equal(error.name, name, error.message);
  return true;
});

const cases = {
  // The SDK compares the MD5 of bodies, sent and received, and fails if one differs.
  async "queues and messages"() {
    const url = await create("node");
    const name = url.split("/").at(-1);
    assert.ok(url.startsWith(`${endpoint}/`), url);
    assert.equal((await call("GetQueueUrl", { QueueName: name })).QueueUrl, url);
    assert.deepEqual((await call("ListQueues", { QueueNamePrefix: name })).QueueUrls, [url]);
    const MessageAttributes = {
      kind: { DataType: "String", StringValue: "é" },
      blob: { DataType: "Binary", BinaryValue: Uint8Array.from([0, 127, 128, 255]) },
    };
    const sent = await call("SendMessage", { QueueUrl: url, MessageBody: "日本 🎈", MessageAttributes });
    const system = ["All"];
    const [found] = await receive(url, { MessageAttributeNames: ["All"], MessageSystemAttributeNames: system });
    assert.equal(found.MessageId, sent.MessageId);
    assert.equal(found.Body, "日本 🎈");
    assert.equal(found.MD5OfMessageAttributes, sent.MD5OfMessageAttributes);
    assert.equal(found.MessageAttributes.kind.StringValue, "é");
    assert.deepEqual([...found.MessageAttributes.blob.BinaryValue], [0, 127, 128, 255]);
    assert.equal(found.Attributes.ApproximateReceiveCount, "1");
    assert.deepEqual(await counts(url), [0, 1, 0]);
    await call("ChangeMessageVisibility", { QueueUrl: url, ReceiptHandle: found.ReceiptHandle, VisibilityTimeout: 0 });
    assert.deepEqual(await receiveAll(url, 1), ["日本 🎈"]);
  },

  async "a batch with a bad entry"() {
    const url = await create("node-batch");
    const Entries = Array.from({ length: 10 }, (_, i) => ({ Id: `e${i}`, MessageBody: `m${i}` }));
    Entries[3].DelaySeconds = -1;
    const answer = await call("SendMessageBatch", { QueueUrl: url, Entries });
    assert.equal(answer.Successful.length, 9);
    assert.deepEqual(answer.Failed.map(({ Id, Code, SenderFault }) => [Id, Code, SenderFault]), [["e3", "InvalidParameterValue", true]]);
    assert.equal((await receiveAll(url, 9)).length, 9);
  },

  async "a delay of seven days"() {
    const url = await create("node-delay");
    await call("SendMessage", { QueueUrl: url, MessageBody: "next week", DelaySeconds: 7 * 24 * 3600 });
    assert.deepEqual(await counts(url), [0, 0, 1]);
    assert.deepEqual(await receive(url, { WaitTimeSeconds: 1 }), []);
  },

  async "a FIFO queue keeps its order and drops repeated messages"() {
    const url = await create("node-fifo", { FifoQueue: "true", ContentBasedDeduplication: "true" });
    for (let i = 0; i < 12; i++) {
      await call("SendMessage", { QueueUrl: url, MessageBody: `m${i}`, MessageGroupId: "g" });
      await call("SendMessage", { QueueUrl: url, MessageBody: `m${i}`, MessageGroupId: "g" });
    }
    assert.deepEqual(await receiveAll(url, 12), Array.from({ length: 12 }, (_, i) => `m${i}`));
  },

  async "a long poll is woken by a send"() {
    const url = await create("node-poll");
    const begin = performance.now();
    const poll = receive(url, { WaitTimeSeconds: 20 });
    // The poll must last at least as long as this pause, or it did not wait for the message.
    await new Promise((resolve) => setTimeout(resolve, 1_000));
    await call("SendMessage", { QueueUrl: url, MessageBody: "now" });
    assert.deepEqual((await poll).map(({ Body }) => Body), ["now"]);
    const took = performance.now() - begin;
    assert.ok(took >= 1_000 && took < 5_000, `the poll took ${took} ms`);
  },

  async "errors are those that programs catch"() {
    await refused(call("GetQueueUrl", { QueueName: `no-${randomUUID()}` }), "QueueDoesNotExist");
    const url = await create("node-errors");
    await refused(call("DeleteMessage", { QueueUrl: url, ReceiptHandle: "x" }), "ReceiptHandleIsInvalid");
    await refused(call("SendMessageBatch", { QueueUrl: url, Entries: [] }), "EmptyBatchRequest");
    const secret = process.env.AWS_SECRET_ACCESS_KEY;
    const wrong = connect(secret.slice(0, -1) + (secret.endsWith("0") ? "1" : "0"));
    await refused(wrong.send(new sdk.ListQueuesCommand({})), "SignatureDoesNotMatch");
  },

  async "sqs-consumer handles 50 messages, and one of them twice"() {
    const url = await create("node-consumer", { VisibilityTimeout: "60" });
    for (let i = 0; i < 5; i++) {
      const Entries = Array.from({ length: 10 }, (_, j) => ({ Id: `e${j}`, MessageBody: String(i * 10 + j) }));
      assert.equal((await call("SendMessageBatch", { QueueUrl: url, Entries })).Successful.length, 10);
    }
    const seen = new Map();
    const counted = [];
    const errors = [];
    let done;
    const all = new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`${seen.size} of 50 messages were handled in ${PATIENCE_MS} ms`)), PATIENCE_MS);
      done = () => (clearTimeout(timer), resolve());
    });
    const consumer = Consumer.create({
      queueUrl: url,
      sqs,
      batchSize: 10,
      waitTimeSeconds: 5,
      // What a handler throws at is visible again at once.
      terminateVisibilityTimeout: true,
      messageSystemAttributeNames: ["ApproximateReceiveCount"],
      async handleMessage(message) {
        const times = (seen.get(message.Body) ?? 0) + 1;
        seen.set(message.Body, times);
        if (message.Body === "17") {
          counted.push(message.Attributes.ApproximateReceiveCount);
          if (times === 1) throw new Error("17 fails once");
        }
        return message;
      },
    });
    consumer.on("processing_error", (error) => errors.push(error.message));
    consumer.on("error", (error) => errors.push(`error: ${error.message}`));
    consumer.on("message_processed", () => seen.size === 50 && seen.get("17") === 2 && done());
    consumer.start();
    try {
      await all;
    } finally {
      const stopped = new Promise((resolve) => consumer.once("stopped", resolve));
      consumer.stop();
      await stopped;
    }
    assert.deepEqual(counted, ["1", "2"], "receives of the message that failed");
    assert.deepEqual([...seen.values()].filter((times) => times !== 1), [2], "messages that were handled more than once");
    assert.equal(errors.length, 1, errors.join("; "));
    assert.match(errors[0], /17 fails once/);
    assert.deepEqual(await counts(url), [0, 0, 0], "messages that are left");
  },

  async "the guide's program of sqs-consumer deletes what it handled"() {
    const url = await create("node-guide");
    const guide = readFileSync(new URL("../../../../docs/sqs.md", import.meta.url), "utf8");
    const [, program] = guide.match(/^## sqs-consumer.*?```js\n(.*?)```/ms);
    const own = program.replace(/http\S*\/mail(?=')/, url).replaceAll("http://127.0.0.1:7890", endpoint);
    assert.ok(own.includes(`'${url}'`) && own.includes(`'${endpoint}'`), own);
    const child = spawn(process.execPath, ["--no-warnings", "--input-type=module", "--eval", own], { env: { ...process.env, AWS_REGION: region } });
    child.stderr.pipe(process.stderr);
    const ended = new Promise((resolve) => child.once("close", resolve));
    const timer = setTimeout(() => child.kill("SIGKILL"), PATIENCE_MS);
    try {
      await call("SendMessage", { QueueUrl: url, MessageBody: "hello" });
      const { value } = await createInterface({ input: child.stdout })[Symbol.asyncIterator]().next();
      assert.equal(value, "hello");
      const begin = performance.now();
      while ((await counts(url))[1] > 0) assert.ok(performance.now() - begin < PATIENCE_MS, "the message was not deleted");
    } finally {
      clearTimeout(timer);
      child.kill("SIGKILL");
      await ended;
    }
    assert.deepEqual(await counts(url), [0, 0, 0]);
  },
};

for (const name of process.argv.slice(2)) assert.ok(name in cases, `there is no case "${name}"`);
const names = process.argv.length > 2 ? process.argv.slice(2) : Object.keys(cases);
for (const name of names) {
  try {
    await cases[name]();
  } catch (error) {
    console.error(error);
    console.log(`FAILED ${name}: ${error.message}`);
    process.exit(1);
  }
  console.log(`ok ${name}`);
}
console.log(`${names.length} passed, 0 failed`);
