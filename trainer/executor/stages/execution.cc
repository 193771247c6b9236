#include "trainer/executor/stages/execution.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include "common/text/text.h"
#include "common/types/model_layout.h"
#include "trainer/executor/stages/stage_devices.h"
#include "trainer/executor/stages/stage_pipeline.h"
#include "trainer/executor/stages/stage_weights.h"
#include "trainer/executor/stages/staged_run.h"
#include "trainer/model/guarded_view.h"
#include "trainer/model/model_outputs.h"
#include "trainer/model/network.h"
#include "trainer/model/row_leaves.h"
#include "trainer/model/torch_values.h"

namespace psd {
namespace {

constexpr const char* kLayersOutput = "scores";  // output of a classifier

std::vector<int64_t> shapeOf(const NamedTensor& tensor) { return {tensor.shape.begin(), tensor.shape.end()}; }

/// Takes ownership of the memory, which autograd graphs may keep longer than the pass.
torch::Tensor adopt(NamedTensor tensor) {
  auto bytes = std::make_shared<std::vector<std::byte>>(std::move(tensor.bytes));
  return torch::from_blob(
      bytes->data(), shapeOf(tensor), [bytes](void*) {}, torchType(tensor.type));
}

ElementType elementTypeOf(const std::string& name, const torch::Tensor& tensor) {
  for (const ElementType type :
       {ElementType::f32, ElementType::f64, ElementType::i32, ElementType::i64, ElementType::u8}) {
    if (tensor.scalar_type() == torchType(type)) return type;
  }
  throw NetworkError("output '" + name + "' is " + describeTensor(tensor) +
                     "; expected f32, f64, i32, i64 or u8");
}

NamedTensor copyOut(const std::string& name, const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.detach().to(torch::kCPU).contiguous();
  NamedTensor copy{name, elementTypeOf(name, flat), {}, std::vector<std::byte>(flat.nbytes())};
  for (const int64_t extent : flat.sizes()) copy.shape.push_back(static_cast<uint64_t>(extent));
  if (!copy.bytes.empty()) std::memcpy(copy.bytes.data(), flat.const_data_ptr(), copy.bytes.size());
  return copy;
}

/// A view of device memory, used for reading only.
torch::Tensor viewOf(const float* values, torch::IntArrayRef shape, const torch::Device& device) {
  return at::for_blob(const_cast<float*>(values), shape)  // for_blob() takes no const pointer
      .options(torch::TensorOptions(torch::kFloat32).device(device))
      .target_device(device)
      .make_tensor();
}

/// Synthetic inputs of these columns, two samples, with values that every column accepts.
std::vector<NamedTensor> syntheticInputs(const std::vector<ColumnSpec>& columns) {
  constexpr uint64_t kSamples = 2, kAnyExtent = 4;
  Batch batch;
  std::vector<ColumnSpec> fixed = columns;
  for (ColumnSpec& column : fixed) std::ranges::replace(column.shape, ColumnSpec::kAny, kAnyExtent);
  batch.reshape(fixed, kSamples);
  for (size_t i = 0; i < fixed.size(); ++i) std::ranges::fill(batch.bytesOf(i), std::byte{0});
  for (const ColumnSpec& column : fixed) {
    std::ranges::fill(batch.values<float>(column.name), 0.5f);
    std::ranges::fill(batch.values<double>(column.name), 0.5);
  }
  return tensorsOf(batch, fixed);
}

/// A pool of networks that no pass uses. Thread-safe; outlives the passes, which share it.
class IdleNetworks {
 public:
  explicit IdleNetworks(NetworkMaker make) : make_(std::move(make)) {}

  std::shared_ptr<Network> take() {
    {
      const std::lock_guard hold(mutex_);
      if (!idle_.empty()) {
        std::shared_ptr<Network> network = std::move(idle_.back());
        idle_.pop_back();
        return network;
      }
    }
    return make_();
  }
  void returnNetwork(std::shared_ptr<Network> network) {
    const std::lock_guard hold(mutex_);
    if (idle_.size() < kIdleMax) idle_.push_back(std::move(network));
  }

 private:
  static constexpr size_t kIdleMax = 64;

  const NetworkMaker make_;
  std::mutex mutex_;  // guards the members below
  std::vector<std::shared_ptr<Network>> idle_;
};

std::vector<Device> devicesOf(const ExecutionOptions& options) {
  std::vector<Device> devices{options.device};
  for (const StageBegin& stage : options.stages) devices.push_back(stage.device);
  return devices;
}

/// A maker of networks that compute on the device; their parameters are bound later.
NetworkMaker makerOn(const ModelChoice& choice, const ExecutionOptions& options) {
  if (!options.stages.empty()) return choice.makeNetwork;
  return [make = choice.makeNetwork, device = torchDevice(options.device)] {
    std::shared_ptr<Network> network = make();
    network->placeOn(device);
    return network;
  };
}

/// State shared by the passes of a model. Immutable, except for members that are thread-safe themselves.
struct Shared {
  Shared(const ModelChoice& choice, const ExecutionOptions& options)
      : networks(makerOn(choice, options)), devices(devicesOf(options)) {}

  IdleNetworks networks;
  StageDevices devices;
  ModelSpec spec;
  ModelLayout layout{ModelSpec{}};
  std::vector<ColumnSpec> inputs;
  LossSpec loss;
  std::string output;                                  ///< staged models: name of the only output
  std::vector<size_t> bounds;                          ///< of the stages, as layer indices
  std::vector<size_t> parameterBounds;                 ///< of the stages, as parameter indices
  std::vector<std::unique_ptr<StageWeights>> weights;  ///< per stage
  uint32_t microBatches = 1;
  std::unique_ptr<StagePipeline> pipeline;  ///< null: the model is not staged
};

class TorchPass final : public ForwardPass {
 public:
  TorchPass(std::shared_ptr<Shared> shared, Weights weights, PassRows rows)
      : shared_(std::move(shared)),
        weights_(std::move(weights)),
        rows_(std::move(rows)),
        network_(shared_->networks.take()) {
    bind();
  }
  ~TorchPass() override {
    staged_.reset();
    tensors_.clear();  // release the graph before the network, the weights and the rows are reused
    leaves_.reset();
    if (reusable_) shared_->networks.returnNetwork(std::move(network_));
  }

  void run(std::vector<NamedTensor> inputs, bool training) {
    Tensors batch;
    for (NamedTensor& input : inputs) {
      const std::string name = input.name;
      batch.emplace(name, adopt(std::move(input)).to(device()));
    }
    const torch::AutoGradMode graph(training);
    network_->train(training);
    if (rows_) {
      leaves_.emplace(shared_->spec.tables, device());
      leaves_->addTo(batch, *rows_, training ? Purpose::training : Purpose::scoring);
    }
    tensors_ = shared_->pipeline ? throughStages(batch, training) : network_->outputs(batch);
    reusable_ = true;
    if (tensors_.empty()) throw NetworkError("the model gave no outputs");
    for (const auto& [name, tensor] : tensors_) outputs_.push_back(copyOut(name, tensor));
    if (!training) tensors_.clear();
  }

  const std::vector<NamedTensor>& outputs() const override { return outputs_; }

  Status backward(const std::vector<NamedTensor>& outputGradients, std::span<float> gradient) override {
    try {
      std::vector<torch::Tensor> outputs, gradients, parameters;
      for (const NamedTensor& each : outputGradients) {
        PSD_RETURN_IF_ERROR(checkGradient(each, outputGradients));
        outputs.push_back(tensors_.find(each.name)->second);
        gradients.push_back(adopt(each).to(outputs.back().device()));
      }
      if (outputs.empty()) return {ErrorCode::invalidArgument, "no gradient of any output is given"};
      for (const auto& [name, tensor] : network_->trained()) parameters.push_back(tensor);
      const size_t dense = parameters.size();
      if (leaves_) parameters.insert(parameters.end(), leaves_->all().begin(), leaves_->all().end());
      std::vector<torch::Tensor> computed(parameters.size());
      if (staged_) {
        staged_->backward(gradients.front(), parameters, computed);
      } else {
        computed = torch::autograd::grad(outputs, parameters, gradients, /*retain_graph=*/false,
                                         /*create_graph=*/false, /*allow_unused=*/true);
      }
      for (size_t i = 0; i < dense; ++i) writePlace(gradient, i, computed[i]);
      if (leaves_) leaves_->putGradients(*rows_, std::span(computed).subspan(dense));
      tensors_.clear();
      return {};
    } catch (const std::exception& exception) {
      return shared_->devices.translateError(exception);
    }
  }

 private:
  /// Device of the first stage.
  const torch::Device& device() const { return shared_->devices.torch().front(); }

  Tensors throughStages(const Tensors& batch, bool training) {
    staged_.emplace(*shared_->pipeline, shared_->bounds, shared_->devices.torch(), network_->layers());
    torch::Tensor output =
        staged_->forward(batch.at(shared_->inputs.front().name), shared_->microBatches, training);
    if (!training) staged_.reset();
    Tensors outputs;
    outputs.emplace(shared_->output, output.requires_grad_(training));
    return outputs;
  }

  /// Binds the parameters of the network to the weights on their stages' devices.
  void bind() {
    const auto trained = network_->trained();
    size_t stage = 0;
    for (const auto& each : shared_->weights) placed_.push_back(each->of(weights_));
    for (size_t i = 0; i < trained.size(); ++i) {
      torch::Tensor parameter = trained[i].second;
      const auto& shape = shared_->spec.tensors[i].shape;
      if (trained.size() != shared_->spec.tensors.size() ||
          !std::equal(shape.begin(), shape.end(), parameter.sizes().begin(), parameter.sizes().end())) {
        throw NetworkError("the model's file has changed since the program started");
      }
      while (i >= shared_->parameterBounds[stage + 1]) ++stage;
      const StageWeights& weights = *shared_->weights[stage];
      const float* const values =
          placed_[stage].get() + (shared_->layout.places()[i].begin - weights.begin());
      parameter.set_data(network_->mayWrite() ? guardedView(values, parameter.sizes(), weights.device())
                                              : viewOf(values, parameter.sizes(), weights.device()));
    }
  }

  Status checkGradient(const NamedTensor& gradient, const std::vector<NamedTensor>& all) const {
    const auto wrong = [&](const std::string& why) {
      return Status(ErrorCode::invalidArgument, "output gradient " + gradient.toString() + ": " + why);
    };
    const auto output = std::ranges::find(outputs_, gradient.name, &NamedTensor::name);
    if (output == outputs_.end()) return wrong("there is no such output");
    if (std::ranges::count(all, gradient.name, &NamedTensor::name) != 1) return wrong("given twice");
    if (output->type != gradient.type || output->shape != gradient.shape) {
      return wrong("expected " + output->toString());
    }
    const auto tensor = tensors_.find(gradient.name);
    if (tensor == tensors_.end() || !tensor->second.requires_grad()) {
      return wrong("no parameter contributes to this output, or the pass was not a training pass");
    }
    if (allFinite(gradient)) return {};
    return {ErrorCode::nonFinite, "output gradient " + gradient.toString() + " holds NaN or infinity"};
  }

  /// Writes the whole range of a parameter, padding included; zeros if it does not contribute to the outputs.
  void writePlace(std::span<float> gradient, size_t index, const torch::Tensor& computed) const {
    const std::vector<TensorPlace>& places = shared_->layout.places();
    const uint64_t end = index + 1 < places.size() ? places[index + 1].begin : gradient.size();
    const std::span<float> place = gradient.subspan(places[index].begin, end - places[index].begin);
    const bool hasPart = computed.defined();
    if (hasPart) {
      const torch::Tensor flat = computed.to(torch::kCPU).contiguous();
      std::memcpy(place.data(), flat.const_data_ptr<float>(), places[index].count * sizeof(float));
    }
    std::ranges::fill(place.subspan(hasPart ? places[index].count : 0), 0.0f);
  }

  const std::shared_ptr<Shared> shared_;
  const Weights weights_;
  std::vector<Weights> placed_;  ///< the weights on each stage's device
  const PassRows rows_;          ///< null: the model has no tables
  std::shared_ptr<Network> network_;
  bool reusable_ = false;            ///< false: the pass failed and may have changed the network
  std::optional<RowLeaves> leaves_;  ///< of rows_
  std::optional<StagedRun> staged_;  ///< the graphs of a staged model
  Tensors tensors_;                  ///< training: the outputs with their graph, until backward()
  std::vector<NamedTensor> outputs_;
};

class TorchExecution final : public ExecutionModel {
 public:
  TorchExecution(const ModelChoice& choice, uint64_t seed, const ExecutionOptions& options)
      : shared_(std::make_shared<Shared>(choice, options)) {
    torch::manual_seed(seed);
    const std::shared_ptr<Network> network = choice.makeNetwork();
    shared_->spec = describeNetwork(choice.name, *network);
    if (const Status valid = validateModel(shared_->spec); !valid.ok()) throw NetworkError(valid.message());
    shared_->layout = ModelLayout(shared_->spec);
    shared_->inputs = network->outputInputs();
    if (shared_->inputs.empty()) {
      throw NetworkError("model '" + choice.name + "' has no outputs, only a loss; expected one of " +
                         joined(kExecutableModels, ", ") +
                         ", or a .pt file whose class has a method `outputs` (docs/guides/executor.md)");
    }
    shared_->loss = network->outputLoss();
    std::vector<std::string> begins;
    for (const StageBegin& stage : options.stages) begins.push_back(stage.layer);
    if (!begins.empty()) cut(*network, choice.name, begins, options);
    copyInitialValues(*network);
    shared_->devices.probeAll();
    placeWeights(*network, begins);
    if (begins.empty()) network->placeOn(shared_->devices.torch().front());
    shared_->networks.returnNetwork(network);
    if (!network->mayWrite()) return;
    checkPasses();
    torch::manual_seed(seed);
  }

  const ModelSpec& spec() const override { return shared_->spec; }
  const std::vector<ColumnSpec>& inputs() const override { return shared_->inputs; }
  LossSpec loss() const override { return shared_->loss; }
  std::vector<Device> devices() const override { return shared_->devices.all(); }
  std::optional<std::string> fault() const override { return shared_->devices.fault(); }
  Weights initialValues() const override {
    const auto values = std::make_shared<torch::Tensor>(initial_);
    return {values, values->const_data_ptr<float>()};
  }

  Result<std::vector<RowLookup>> lookUp(const std::vector<NamedTensor>& inputs, bool training) override {
    if (shared_->spec.tables.empty()) return std::vector<RowLookup>();
    try {
      std::shared_ptr<Network> network = shared_->networks.take();
      auto lookups = network->lookUp(batchOf(inputs), training ? Purpose::training : Purpose::scoring);
      shared_->networks.returnNetwork(std::move(network));
      return lookups;
    } catch (const std::exception& exception) {
      return shared_->devices.translateError(exception);
    }
  }

  Result<std::unique_ptr<ForwardPass>> forward(Weights weights, std::vector<NamedTensor> inputs,
                                               bool training, PassRows rows) override {
    try {
      auto pass = std::make_unique<TorchPass>(shared_, std::move(weights), std::move(rows));
      pass->run(std::move(inputs), training);
      return std::unique_ptr<ForwardPass>(std::move(pass));
    } catch (const std::exception& exception) {
      return shared_->devices.translateError(exception);
    }
  }

 private:
  /// Throws if a scoring or training pass writes to a parameter. Other errors are ignored, as the synthetic
  /// inputs may cause them.
  void checkPasses() {
    const std::vector<NamedTensor> inputs = syntheticInputs(shared_->inputs);
    for (const bool training : {false, true}) {
      try {
        std::vector<torch::Tensor> blocks;
        TorchPass(shared_, initialValues(), zeroRows(inputs, training, blocks)).run(inputs, training);
      } catch (const ParameterWritten&) {
        throw;
      } catch (const std::exception&) {
      }
    }
  }

  /// Rows for a pass: each lookup refers to a single row of zeros, in `blocks`; null without tables.
  PassRows zeroRows(const std::vector<NamedTensor>& inputs, bool training,
                    std::vector<torch::Tensor>& blocks) {
    if (shared_->spec.tables.empty()) return nullptr;
    const auto rows = std::make_shared<BatchRows>();
    auto lookups = lookUp(inputs, training);
    if (!lookups.ok()) throw NetworkError(lookups.message());
    rows->lookups = *std::move(lookups);
    const auto flat = [&](const torch::Tensor& block) {
      blocks.push_back(block);
      return std::span(block.data_ptr<float>(), static_cast<size_t>(block.numel()));
    };
    for (const TableSpec& table : shared_->spec.tables) {
      rows->blocks.push_back({flat(torch::zeros(table.dim)), flat(torch::zeros(table.dim))});
    }
    for (RowLookup& lookup : rows->lookups) {
      const auto count = static_cast<int64_t>(lookup.ids.size());
      blocks.push_back(torch::zeros(count, torch::kInt64));
      lookup.places = {blocks.back().const_data_ptr<int64_t>(), lookup.ids.size()};
    }
    return rows;
  }

  void cut(Network& network, const std::string& name, const std::vector<std::string>& begins,
           const ExecutionOptions& options) {
    const std::vector<Layer> layers = network.layers();
    if (layers.empty()) {
      throw NetworkError("stages: model '" + name + "' cannot be cut at its layers; expected one of " +
                         joined(kStagedModels, ", "));
    }
    auto bounds = divideIntoStages(layers, begins);
    if (!bounds.ok()) throw NetworkError(bounds.message());
    shared_->bounds = *std::move(bounds);
    shared_->output = kLayersOutput;
    shared_->microBatches = options.microBatches;
    shared_->pipeline = std::make_unique<StagePipeline>(
        begins.size() + 1, [threads = options.threads] { useComputeThreads(threads); });
  }

  void placeWeights(const Network& network, const std::vector<std::string>& begins) {
    shared_->parameterBounds = divideParameters(network, begins);
    const auto begin = [this](size_t parameter) {
      const auto& places = shared_->layout.places();
      return parameter < places.size() ? places[parameter].begin : shared_->layout.totalElements();
    };
    for (size_t stage = 0; stage <= begins.size(); ++stage) {
      const uint64_t from = begin(shared_->parameterBounds[stage]);
      const uint64_t to = begin(shared_->parameterBounds[stage + 1]);
      shared_->weights.push_back(
          std::make_unique<StageWeights>(shared_->devices.torch()[stage], from, to - from));
    }
  }

  void copyInitialValues(const Network& network) {
    initial_ = torch::zeros({static_cast<int64_t>(shared_->layout.totalElements())});
    const auto trained = network.trained();
    for (size_t i = 0; i < trained.size(); ++i) {
      const TensorPlace& place = shared_->layout.places()[i];
      initial_.narrow(0, static_cast<int64_t>(place.begin), static_cast<int64_t>(place.count))
          .copy_(trained[i].second.detach().flatten());
    }
  }

  const std::shared_ptr<Shared> shared_;
  torch::Tensor initial_;
};

}  // namespace

Result<std::unique_ptr<ExecutionModel>> makeExecutionModel(const ModelChoice& choice, uint64_t seed,
                                                           const ExecutionOptions& options) {
  try {
    return std::unique_ptr<ExecutionModel>(std::make_unique<TorchExecution>(choice, seed, options));
  } catch (const NetworkError& error) {
    return Error{ErrorCode::invalidArgument, error.what()};
  } catch (const std::exception& exception) {
    return translateException(exception, StageDevices(devicesOf(options)).toString());
  }
}

void useComputeThreads(uint32_t threads) { at::set_num_threads(static_cast<int>(threads)); }

}  // namespace psd
