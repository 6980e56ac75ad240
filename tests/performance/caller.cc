// Load by a real gRPC client: C-core's C++ API with one completion queue, one thread, no protobuf.
//
//   caller TARGET METHOD BODY SECONDS CONNECTIONS CALLS [VARY]   BODY: a file with one serialized request message;
//                                                                CALLS are kept in flight on each of CONNECTIONS;
//                                                                VARY: id or traceparent, another with each call
//
// Writes JSON: requests, per_s, p50_us, p99_us, load_busy. A call that fails ends it with exit code 1 and the status.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

using Clock = std::chrono::steady_clock;

std::string message, vary;

struct Call {
  grpc::GenericStub* stub;
  std::optional<grpc::ClientContext> context;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  grpc::ByteBuffer reply;
  grpc::Status status;
  Clock::time_point began;

  void start(const std::string& method, const grpc::ByteBuffer& request, grpc::CompletionQueue* queue) {
    static unsigned number;
    context.emplace();
    reply.Clear();
    char text[56];
    if (vary == "traceparent") {
      std::snprintf(text, sizeof text, "00-%032x-%016x-01", ++number, number);
      context->AddMetadata("traceparent", text);
    }
    began = Clock::now();
    if (vary == "id") {  // field 3 before the others, which protobuf takes in any order
      std::snprintf(text, sizeof text, "\x1a\x10%016x", ++number);
      const grpc::Slice named(text + message);
      reader = stub->PrepareUnaryCall(&*context, method, grpc::ByteBuffer(&named, 1), queue);
    } else {
      reader = stub->PrepareUnaryCall(&*context, method, request, queue);
    }
    reader->StartCall();
    reader->Finish(&reply, &status, this);
  }
};

std::vector<std::unique_ptr<Call>> connect(const char* target, int connections, int each,
                                           std::vector<std::unique_ptr<grpc::GenericStub>>& stubs) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // else channels to one target share one connection
  std::vector<std::unique_ptr<Call>> calls;
  while (connections--) {
    const auto channel = grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
    if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(10))) {
      std::fputs("no connection within 10 s\n", stderr);
      std::exit(1);
    }
    stubs.push_back(std::make_unique<grpc::GenericStub>(channel));
    for (int call = 0; call < each; ++call) {
      calls.push_back(std::make_unique<Call>());
      calls.back()->stub = stubs.back().get();
    }
  }
  return calls;
}

// Every call that ends is followed by the next until `end`; what each took, in microseconds.
std::vector<double> drive(const std::vector<std::unique_ptr<Call>>& calls, const std::string& method,
                          const grpc::ByteBuffer& request, Clock::time_point end) {
  grpc::CompletionQueue queue;
  for (const auto& call : calls) call->start(method, request, &queue);
  std::vector<double> laps;
  void* tag;
  bool ok;
  for (std::size_t open = calls.size(); open && queue.Next(&tag, &ok);) {
    auto* call = static_cast<Call*>(tag);
    const auto now = Clock::now();
    if (!call->status.ok()) {
      std::fprintf(stderr, "status %d: %s\n", call->status.error_code(), call->status.error_message().c_str());
      std::_Exit(1);
    }
    laps.push_back(std::chrono::duration<double, std::micro>(now - call->began).count());
    if (now < end) {
      call->start(method, request, &queue);
    } else {
      --open;
    }
  }
  return laps;
}

int main(int count, char** words) {
  if (count < 7) return std::fputs("usage: caller TARGET METHOD BODY SECONDS CONNECTIONS CALLS [VARY]\n", stderr), 2;
  std::ifstream file(words[3], std::ios::binary);
  message = std::string{std::istreambuf_iterator<char>(file), {}};
  vary = count > 7 ? words[7] : "";
  const grpc::Slice body(message);
  const grpc::ByteBuffer request(&body, 1);
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs;
  const auto calls = connect(words[1], std::atoi(words[5]), std::atoi(words[6]), stubs);
  const auto cpu = std::clock();
  const auto began = Clock::now();
  auto laps = drive(calls, words[2], request, began + std::chrono::microseconds(std::lround(std::atof(words[4]) * 1e6)));
  const double wall = std::chrono::duration<double>(Clock::now() - began).count();
  const double busy = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC / wall;
  std::sort(laps.begin(), laps.end());
  const auto at = [&](double share) { return laps[static_cast<std::size_t>(share * (laps.size() - 1))]; };
  std::printf("{\"requests\": %zu, \"per_s\": %.3f, \"p50_us\": %.3f, \"p99_us\": %.3f, \"load_busy\": %.4f}\n",
              laps.size(), laps.size() / wall, at(0.5), at(0.99), busy);
}
