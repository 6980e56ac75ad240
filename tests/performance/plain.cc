// The baseline `C++`: what an engineer writes by hand in C++. gRPC's asynchronous API on one thread, protobuf, and ONNX
// Runtime, whose runs happen on that thread.
//
//   plain MODELS UNIX_SOCKET      MODELS: a directory of NAME/model.onnx
//
// Writes its TCP port when it listens, and serves ModelInfer until it is killed. Requests have raw FP32 or UINT8 contents.
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "inference.grpc.pb.h"

// ONNX Runtime's C API: only what is used of its table of functions, by their documented places, which never change.
extern "C" {
using Function = void (*)();
struct OrtApi {
  Function functions[101];
};
struct OrtApiBase {
  const OrtApi* (*api)(uint32_t version);
  const char* (*version)();
};
const OrtApiBase* OrtGetApiBase();
}

namespace ort {
constexpr uint32_t kVersion = 1;
enum Type { kFloat = 1, kUint8 = 2 };
enum { kErrorMessage = 2, kCreateEnv = 3, kCreateSession = 7, kRun = 9, kCreateSessionOptions = 10, kIntraOpThreads = 24,
       kOutputCount = 31, kOutputName = 37, kTensorWithData = 49, kTensorData = 51, kDimensionsCount = 61,
       kDimensions = 62, kElementCount = 64, kTypeAndShape = 65, kCpuMemory = 69, kAllocator = 78, kReleaseValue = 96,
       kReleaseShape = 99 };

const OrtApi* api = OrtGetApiBase()->api(kVersion);

template <typename... Arguments>
void call(int function, Arguments... arguments) {
  if (void* status = reinterpret_cast<void* (*)(Arguments...)>(api->functions[function])(arguments...)) {
    std::fputs(reinterpret_cast<const char* (*)(void*)>(api->functions[kErrorMessage])(status), stderr);
    std::exit(1);
  }
}

void release(int function, void* object) { reinterpret_cast<void (*)(void*)>(api->functions[function])(object); }
}  // namespace ort

struct Model {
  void* session = nullptr;
  std::vector<std::string> outputs;
};

class Runtime {
 public:
  explicit Runtime(const std::filesystem::path& folder) {
    ort::call(ort::kCreateEnv, 3, "plain", &env_);
    ort::call(ort::kCpuMemory, 1, 0, &memory_);
    ort::call(ort::kAllocator, &allocator_);
    ort::call(ort::kCreateSessionOptions, &options_);
    ort::call(ort::kIntraOpThreads, options_, 1);
    for (const auto& each : std::filesystem::directory_iterator(folder)) {
      const std::string file = each.path() / "model.onnx";
      if (std::filesystem::exists(file)) open(models_[each.path().filename()], file);
    }
  }

  grpc::Status answer(const inference::ModelInferRequest& request, inference::ModelInferResponse* reply) {
    const auto found = models_.find(request.model_name());
    if (found == models_.end()) return {grpc::StatusCode::NOT_FOUND, "unknown model"};
    const Model& model = found->second;
    std::vector<const char*> inputs, outputs;
    std::vector<void*> given, got(model.outputs.size());
    for (int index = 0; index < request.inputs_size(); ++index) {
      const auto& tensor = request.inputs(index);
      const auto& content = request.raw_input_contents(index);
      const auto type = tensor.datatype() == "FP32" ? ort::kFloat : ort::kUint8;
      inputs.push_back(tensor.name().c_str());
      given.push_back(nullptr);
      ort::call(ort::kTensorWithData, memory_, const_cast<char*>(content.data()), content.size(), tensor.shape().data(),
                static_cast<size_t>(tensor.shape_size()), static_cast<int>(type), &given.back());
    }
    for (const auto& name : model.outputs) outputs.push_back(name.c_str());
    ort::call(ort::kRun, model.session, static_cast<void*>(nullptr), inputs.data(), given.data(), given.size(),
              outputs.data(), outputs.size(), got.data());
    reply->set_model_name(request.model_name());
    reply->set_model_version("1");
    reply->set_id(request.id());
    for (size_t index = 0; index < got.size(); ++index) write(model.outputs[index], got[index], reply);
    for (void* tensor : given) ort::release(ort::kReleaseValue, tensor);
    return grpc::Status::OK;
  }

 private:
  void open(Model& model, const std::string& file) {
    size_t count = 0;
    ort::call(ort::kCreateSession, env_, file.c_str(), options_, &model.session);
    ort::call(ort::kOutputCount, model.session, &count);
    for (size_t index = 0; index < count; ++index) {
      char* name = nullptr;
      ort::call(ort::kOutputName, model.session, index, allocator_, &name);
      model.outputs.emplace_back(name);
    }
  }

  static void write(const std::string& name, void* tensor, inference::ModelInferResponse* reply) {
    void *shape = nullptr, *data = nullptr;
    size_t rank = 0, elements = 0;
    ort::call(ort::kTypeAndShape, tensor, &shape);
    ort::call(ort::kDimensionsCount, shape, &rank);
    std::vector<int64_t> sides(rank);
    ort::call(ort::kDimensions, shape, sides.data(), rank);
    ort::call(ort::kElementCount, shape, &elements);
    ort::call(ort::kTensorData, tensor, &data);
    auto* output = reply->add_outputs();
    output->set_name(name);
    output->set_datatype("FP32");
    output->mutable_shape()->Add(sides.begin(), sides.end());
    reply->add_raw_output_contents(data, elements * sizeof(float));
    ort::release(ort::kReleaseShape, shape);
    ort::release(ort::kReleaseValue, tensor);
  }

  void *env_ = nullptr, *memory_ = nullptr, *allocator_ = nullptr, *options_ = nullptr;
  std::map<std::string, Model> models_;
};

using Service = inference::GRPCInferenceService::WithAsyncMethod_ModelInfer<inference::GRPCInferenceService::Service>;

// One call after the other: it waits for a request, answers it, and begins again when the answer was sent.
class Call {
 public:
  Call(Service* service, grpc::ServerCompletionQueue* queue, Runtime* runtime)
      : service_(service), queue_(queue), runtime_(runtime) { begin(); }

  void proceed(bool ok) {
    if (!ok || answered_) return begin();
    answered_ = true;
    inference::ModelInferResponse reply;
    const auto status = runtime_->answer(request_, &reply);
    status.ok() ? writer_->Finish(reply, status, this) : writer_->FinishWithError(status, this);
  }

 private:
  void begin() {
    answered_ = false;
    request_.Clear();
    context_ = std::make_unique<grpc::ServerContext>();
    writer_ = std::make_unique<grpc::ServerAsyncResponseWriter<inference::ModelInferResponse>>(context_.get());
    service_->RequestModelInfer(context_.get(), &request_, writer_.get(), queue_, queue_, this);
  }

  Service* service_;
  grpc::ServerCompletionQueue* queue_;
  Runtime* runtime_;
  bool answered_ = false;
  inference::ModelInferRequest request_;
  std::unique_ptr<grpc::ServerContext> context_;
  std::unique_ptr<grpc::ServerAsyncResponseWriter<inference::ModelInferResponse>> writer_;
};

int main(int count, char** words) {
  if (count != 3) return 2;
  Runtime runtime(words[1]);
  Service service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.SetMaxReceiveMessageSize(64 << 20);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.AddListeningPort("unix:" + std::string(words[2]), grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const auto queue = builder.AddCompletionQueue();
  const auto server = builder.BuildAndStart();
  if (!server) return 1;
  std::vector<std::unique_ptr<Call>> calls;
  for (int call = 0; call < 1024; ++call) calls.push_back(std::make_unique<Call>(&service, queue.get(), &runtime));
  std::printf("%d\n", port);
  std::fflush(stdout);
  void* tag = nullptr;
  for (bool ok = false; queue->Next(&tag, &ok);) static_cast<Call*>(tag)->proceed(ok);
}
