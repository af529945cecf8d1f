// Streams one completion, and prints what comes as a line of JSON each: `node generate.js SETTINGS`, where SETTINGS is
// JSON: {target, proto, root (PEM file), token, prompt, deadline_s}. The .proto files are loaded as they are.
import { readFileSync } from "node:fs";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const settings = JSON.parse(process.argv[2]);
const definition = loader.loadSync("chairlift/v1/inference.proto", {
  includeDirs: [settings.proto],
  keepCase: true,
  longs: String,
  enums: String,
  oneofs: true,
  defaults: true,
});
const { InferenceService } = grpc.loadPackageDefinition(definition).chairlift.v1;
const credentials = grpc.credentials.createSsl(readFileSync(settings.root));
const client = new InferenceService(settings.target, credentials);
const metadata = new grpc.Metadata();
metadata.set("authorization", `Bearer ${settings.token}`);

function print(line) {
  console.log(JSON.stringify(line));
}

client.ListModels({}, metadata, (error, reply) => {
  if (error) print({ models_error: error.code });
  else print({ models: reply.models.map((model) => model.id) });
  const request = { request_id: "from-node", text: settings.prompt, stopping: { max_tokens: 4 } };
  const deadline = Date.now() + 1000 * settings.deadline_s;
  const stream = client.Generate(request, metadata, { deadline });
  stream.on("data", ({ event }) => {
    if (event.event === "delta") print({ text: event.delta.text, offset: event.delta.offset });
    if (event.event === "accepted") print({ accepted: event.accepted.request_id });
    if (event.event === "finished") print({ reason: event.finished.reason, usage: event.finished.usage });
  });
  stream.on("error", () => {});
  stream.on("status", (status) => {
    const [details] = status.metadata.get("grpc-status-details-bin");
    print({ code: status.code, details: details ? details.toString("base64") : null });
    client.close();
  });
});
