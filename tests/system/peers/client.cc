// A client of the gateway as a C++ program has one: Debian's gRPC, the synchronous API, this project's .proto files.
//
//   client TARGET COMMAND ...      TARGET is what gRPC takes; "tls:" before it asks for TLS, with the roots of
//                                  GRPC_DEFAULT_SSL_ROOTS_FILE_PATH
//   ready | metadata MODEL | health SERVICE
//   infer MODEL TIMEOUT_US INPUT FILE DIMENSION...     FILE holds one tensor of FP32; TIMEOUT_US 0 sets no deadline
//   stream MODEL INPUT FILE DIMENSION...               each row is a request of its own; after the first, a bad one
//
// It writes lines of "name value"; its caller judges them. It exits 0 wherever a call ended, with whatever status.
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "health.grpc.pb.h"
#include "inference.grpc.pb.h"

using Words = std::vector<std::string>;

template <typename Value>
void say(const std::string& name, const Value& value) {
  std::cout << name << ' ' << value << '\n';
}

void say_end(const grpc::ClientContext& context, const grpc::Status& status) {
  say("status", static_cast<int>(status.error_code()));
  say("details", status.error_message());
  for (const auto& [key, value] : context.GetServerTrailingMetadata()) {
    say("trailer", std::string(key.data(), key.size()) + "=" + std::string(value.data(), value.size()));
  }
}

void say_scores(const inference::ModelInferResponse& response) {
  say("id", response.id());
  say("model", response.model_name() + "/" + response.model_version());
  for (const auto& output : response.outputs()) {
    std::string shape;
    for (const auto length : output.shape()) shape += (shape.empty() ? "" : "x") + std::to_string(length);
    say("output", output.name() + ":" + output.datatype() + ":" + shape);
  }
  for (const auto& raw : response.raw_output_contents()) {
    const auto* values = reinterpret_cast<const float*>(raw.data());
    for (size_t index = 0; index < raw.size() / sizeof(float); ++index) say("score", values[index]);
  }
}

inference::ModelInferRequest request(const std::string& model, const std::string& input, const std::string& raw,
                                     const std::vector<int64_t>& shape) {
  inference::ModelInferRequest made;
  made.set_model_name(model);
  auto* tensor = made.add_inputs();
  tensor->set_name(input);
  tensor->set_datatype("FP32");
  for (const auto length : shape) tensor->add_shape(length);
  made.add_raw_input_contents(raw);
  return made;
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<int64_t> dimensions(const Words& words, size_t first) {
  std::vector<int64_t> found;
  for (size_t index = first; index < words.size(); ++index) found.push_back(std::stoll(words[index]));
  return found;
}

void ready(inference::GRPCInferenceService::Stub& gateway) {
  grpc::ClientContext context;
  inference::ServerReadyResponse response;
  const auto status = gateway.ServerReady(&context, {}, &response);
  say("ready", response.ready());
  say_end(context, status);
}

void metadata(inference::GRPCInferenceService::Stub& gateway, const std::string& model) {
  grpc::ClientContext context;
  context.AddMetadata("x-camera", "front door");
  context.AddMetadata("x-trace-bin", std::string("\0\xff\x01", 3));
  inference::ModelMetadataRequest request;
  inference::ModelMetadataResponse response;
  request.set_name(model);
  const auto status = gateway.ModelMetadata(&context, request, &response);
  say("name", response.name());
  for (const auto& input : response.inputs()) say("input", input.name() + ":" + input.datatype());
  say("peer", context.peer());
  say_end(context, status);
}

void health(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckRequest request;
  grpc::health::v1::HealthCheckResponse response;
  request.set_service(service);
  const auto status = grpc::health::v1::Health::NewStub(channel)->Check(&context, request, &response);
  say("health", grpc::health::v1::HealthCheckResponse::ServingStatus_Name(response.status()));
  say_end(context, status);
}

void infer(inference::GRPCInferenceService::Stub& gateway, const Words& words) {
  grpc::ClientContext context;
  if (const auto timeout_us = std::stoll(words[1]); timeout_us > 0) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::microseconds(timeout_us));
  }
  auto sent = request(words[0], words[2], contents(words[3]), dimensions(words, 4));
  sent.set_id("from C++");
  inference::ModelInferResponse response;
  const auto status = gateway.ModelInfer(&context, sent, &response);
  if (status.ok()) say_scores(response);
  say_end(context, status);
}

void stream(inference::GRPCInferenceService::Stub& gateway, const Words& words) {
  grpc::ClientContext context;
  auto shape = dimensions(words, 3);
  const auto rows = shape[0];
  shape[0] = 1;
  const auto all = contents(words[2]);
  const auto width = all.size() / rows;
  const auto call = gateway.ModelStreamInfer(&context);
  for (int64_t row = 0; row < rows; ++row) {
    auto sent = request(words[0], words[1], all.substr(row * width, width), shape);
    sent.set_id(std::to_string(row));
    call->Write(sent);
    if (row == 0) call->Write(request("nobody", words[1], all.substr(0, width), shape));
  }
  call->WritesDone();
  inference::ModelStreamInferResponse reply;
  while (call->Read(&reply)) {
    if (!reply.error_message().empty()) say("error", reply.error_message());
    if (reply.error_message().empty()) say_scores(reply.infer_response());
  }
  const auto status = call->Finish();
  say_end(context, status);
}

int main(int count, char** arguments) {
  const Words words(arguments + 1, arguments + count);
  if (words.size() < 2) return 2;
  const bool tls = words[0].rfind("tls:", 0) == 0;
  const auto credentials = tls ? grpc::SslCredentials({}) : grpc::InsecureChannelCredentials();
  const auto channel = grpc::CreateChannel(tls ? words[0].substr(4) : words[0], credentials);
  const auto gateway = inference::GRPCInferenceService::NewStub(channel);
  const Words rest(words.begin() + 2, words.end());
  const auto& command = words[1];
  if (command == "ready") ready(*gateway);
  else if (command == "metadata" && rest.size() == 1) metadata(*gateway, rest[0]);
  else if (command == "health" && rest.size() == 1) health(channel, rest[0]);
  else if (command == "infer" && rest.size() > 4) infer(*gateway, rest);
  else if (command == "stream" && rest.size() > 3) stream(*gateway, rest);
  else return 2;
  return 0;
}
