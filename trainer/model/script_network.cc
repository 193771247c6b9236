#include "trainer/model/script_network.h"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include <torch/csrc/jit/runtime/graph_executor.h>

#include "common/text/text.h"
#include "trainer/model/guarded_view.h"
#include "trainer/model/load_script.h"
#include "trainer/model/model_outputs.h"
#include "trainer/model/network.h"
#include "trainer/model/own_model.h"
#include "trainer/model/row_tables.h"

namespace psd {
namespace {

constexpr const char* kOutputs = "outputs";  // an optional method of the module
constexpr std::string_view kForward = "(Dict[str, Tensor]) -> Dict[str, Tensor]";
constexpr std::string_view kNormCounter = "num_batches_tracked";  // present if BatchNorm tracks statistics

/// The location of a module's attribute.
struct AttributeSlot {
  std::string name;  ///< qualified: "bn.running_mean"
  c10::intrusive_ptr<c10::ivalue::Object> object;
  size_t index = 0;
  bool isParameter = false;

  const c10::IValue& value() const { return object->getSlot(index); }
};

using SeenObjects = std::unordered_set<const c10::ivalue::Object*>;

/// Appends all attributes of a module and its submodules, visiting each module once.
void collectSlots(const c10::intrusive_ptr<c10::ivalue::Object>& object, const std::string& prefix,
                  SeenObjects& seen, std::vector<AttributeSlot>& slots) {
  if (!seen.insert(object.get()).second) return;
  const c10::ClassTypePtr type = object->type();
  for (size_t i = 0; i < type->numAttributes(); ++i) {
    const std::string name = prefix + type->getAttributeName(i);
    if (!type->getAttribute(i)->is_module()) {
      slots.push_back({name, object, i, type->is_parameter(i)});
    } else if (object->getSlot(i).isObject()) {
      collectSlots(object->getSlot(i).toObject(), name + ".", seen, slots);
    }
  }
}

/// Condenses an exception of TorchScript's interpreter to one line: the message and the location in the
/// user's file.
std::string conciseMessage(const std::exception& exception) {
  const auto* torchError = dynamic_cast<const c10::Error*>(&exception);
  const std::string all = torchError ? torchError->what_without_backtrace() : exception.what();
  constexpr std::string_view kOriginal = "original code (most recent call last):\n  File ", kKind = "rror: ";
  std::string where;
  if (const size_t at = all.find(kOriginal); at != std::string::npos) {
    const size_t begin = at + kOriginal.size();
    where = " (" + all.substr(begin, all.find('\n', begin) - begin) + ")";
  }
  // The message follows the quoted code, whose lines begin with a blank.
  size_t begin = 0;
  for (size_t line = 0; line != std::string::npos && line < all.size();) {
    const std::string_view text = std::string_view(all).substr(line, all.find('\n', line) - line);
    if (!text.starts_with(' ') && text.find(kKind) != std::string_view::npos) begin = line;
    line = all.find('\n', line);
    if (line != std::string::npos) ++line;
  }
  return all.substr(begin, all.find('\n', begin) - begin) + where;
}

bool sameTensor(torch::Tensor a, torch::Tensor b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type() || a.layout() != b.layout()) return false;
  if (a.layout() != torch::kStrided) {
    a = a.to_dense();
    b = b.to_dense();
  }
  if (at::equal(a, b)) return true;
  return a.is_floating_point() && at::allclose(a, b, 0, 0, /*equal_nan=*/true);
}

/// Whether an attribute, including its elements, can be copied and compared.
bool isData(const c10::IValue& value) {
  if (value.isList()) return std::ranges::all_of(value.toListRef(), isData);
  if (value.isTuple()) return std::ranges::all_of(value.toTupleRef().elements(), isData);
  if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    return std::all_of(dict.begin(), dict.end(), [](const auto& entry) { return isData(entry.value()); });
  }
  return value.isTensor() || value.isInt() || value.isDouble() || value.isBool() || value.isString() ||
         value.isNone();
}

bool sameValue(const c10::IValue& a, const c10::IValue& b) {
  if (a.tagKind() != b.tagKind()) return false;
  if (a.isTensor()) return sameTensor(a.toTensor(), b.toTensor());
  if (a.isList()) return std::ranges::equal(a.toListRef(), b.toListRef(), sameValue);
  if (a.isTuple()) {
    return std::ranges::equal(a.toTupleRef().elements(), b.toTupleRef().elements(), sameValue);
  }
  if (!a.isGenericDict()) return a == b;
  const auto one = a.toGenericDict(), other = b.toGenericDict();
  return one.size() == other.size() && std::all_of(one.begin(), one.end(), [&](const auto& entry) {
           const auto found = other.find(entry.key());
           return found != other.end() && sameValue(entry.value(), found->value());
         });
}

/// See loadScriptNetwork(). Other attributes than trained parameters, above all buffers, have the values of
/// the file in all trainers and evaluations. A module that changes them is rejected, since no other process
/// would see the change.
class ScriptNetwork : public Network {
 public:
  ScriptNetwork(std::string path, torch::jit::Module module, ModelDeclaration declaration)
      : path_(std::move(path)), module_(std::move(module)), declaration_(std::move(declaration)) {
    checkMethod("forward");
    if (module_.find_method(kOutputs)) checkMethod(kOutputs);
    std::vector<AttributeSlot> slots;
    SeenObjects seen;
    collectSlots(module_._ivalue(), "", seen, slots);
    for (AttributeSlot& slot : slots) classify(std::move(slot));
    if (trained_.empty() && declaration_.tables.empty()) throw wrong("has no parameters that are trained");
  }

  std::vector<std::pair<std::string, torch::Tensor>> trained() const override { return trained_; }
  std::vector<ColumnSpec> inputs() const override { return declaration_.columns; }
  std::vector<TableSpec> tables() const override { return declaration_.tables; }

  void placeOn(torch::Device device) override {
    for (FixedValue& fixed : fixed_) {
      if (!fixed.copy.isTensor()) continue;
      fixed.copy = fixed.copy.toTensor().to(device);
      fixed.slot.object->setSlot(fixed.slot.index, fixed.slot.value().toTensor().to(device));
    }
  }

  void train(bool on) override {
    torch::nn::Module::train(on);
    if (mode_ != on) module_.train(on);
    mode_ = on;
  }

  std::vector<RowLookup> lookUp(const Batch& batch, Purpose) override {
    std::vector<RowLookup> lookups;
    for (const auto& rows : declaration_.rows) {
      lookups.push_back(lookUpColumn(batch, rows.column, rows.name, rows.table));
    }
    return lookups;
  }

  torch::Tensor loss(const Tensors& batch) override {
    return withFileName(path_, [&] {
      torch::Tensor loss = run(batch).loss();
      if (!loss.requires_grad())
        throw NetworkError("forward returned a 'loss' that does not depend on any parameter");
      return loss;
    });
  }

  std::vector<ColumnSpec> outputInputs() const override {
    return module_.find_method(kOutputs) ? declaration_.inputs : std::vector<ColumnSpec>();
  }
  bool mayWrite() const override { return true; }
  Tensors outputs(const Tensors& batch) override {
    return withFileName(path_, [&] { return call(kOutputs, withRows(batch, declaration_.inputs)); });
  }
  LossSpec outputLoss() const override { return declaration_.outputLoss; }

  Score score(const Tensors& batch) override {
    return withFileName(path_, [&] { return run(batch).score(declaration_, samplesOf(batch)); });
  }

 private:
  /// An attribute that is not trained, with its value in the file.
  struct FixedValue {
    AttributeSlot slot;
    c10::IValue copy;
  };

  /// A trained parameter and its location.
  struct Trained {
    AttributeSlot slot;
    torch::Tensor tensor;
    // State at the start of the current call.
    int64_t version = 0;  ///< incremented by each operation that declares a write
    bool guarded = false;
  };

  NetworkError wrong(const std::string& what) const { return NetworkError(quotedPath(path_) + " " + what); }

  void checkMethod(const std::string& name) const {
    const auto method = module_.find_method(name);
    if (!method) throw wrong("has no " + name + "; expected " + name + std::string(kForward));
    const c10::FunctionSchema& schema = method->function().getSchema();
    const auto isDict = [](const c10::Argument& value) { return value.type()->str() == "Dict(str, Tensor)"; };
    if (schema.arguments().size() == 2 && isDict(schema.arguments()[1]) && schema.returns().size() == 1 &&
        isDict(schema.returns()[0])) {
      return;
    }
    const std::string takes = joined(std::span(schema.arguments()).subspan(1), ", ",
                                     [](const c10::Argument& each) { return each.type()->annotation_str(); });
    const std::string gives = joined(schema.returns(), ", ",
                                     [](const c10::Argument& each) { return each.type()->annotation_str(); });
    throw wrong("has " + name + "(" + takes + ") -> " + gives + "; expected " + name + std::string(kForward));
  }

  void classify(AttributeSlot slot) {
    const c10::IValue value = slot.value();
    if (slot.isParameter && value.isTensor() && value.toTensor().requires_grad()) {
      return addTrained(slot, value.toTensor());
    }
    const size_t dot = slot.name.rfind('.') + 1;  // 0 if there is none
    if (value.isTensor() && slot.name.substr(dot) == kNormCounter) {
      throw wrong(
          "has '" + slot.name.substr(0, dot == 0 ? 0 : dot - 1) +
          "', which keeps running statistics as BatchNorm does: trainers do not share them, so the model "
          "would be scored wrongly; expected GroupNorm, LayerNorm, or track_running_stats=False");
    }
    if (value.isTensor() && value.toTensor().defined()) {
      fixed_.push_back({std::move(slot), value.toTensor().detach().clone()});
    } else if (!value.isTensor() && slot.name.substr(dot) != "training" && isData(value)) {
      fixed_.push_back({std::move(slot), value.deepcopy()});
    }
  }

  /// Parameters that share memory, such as tied weights, become a single one.
  void addTrained(const AttributeSlot& slot, const torch::Tensor& tensor) {
    for (const auto& [name, other] : trained_) {
      if (!tensor.is_alias_of(other)) continue;
      if (tensor.sizes() != other.sizes() || tensor.strides() != other.strides() ||
          tensor.storage_offset() != other.storage_offset()) {
        throw wrong("has parameters '" + name + "' and '" + slot.name +
                    "' that share memory but differ in shape, strides or offset");
      }
      slot.object->setSlot(slot.index, other);
      trainedSlots_.push_back({slot, other});
      return;
    }
    if (tensor.scalar_type() != torch::kFloat32) {
      throw wrong("has parameter '" + slot.name + "' of " + describeTensor(tensor) + "; expected f32");
    }
    if (!at::isfinite(tensor).all().item<bool>()) {
      throw wrong("has parameter '" + slot.name + "' that holds NaN or infinity");
    }
    trained_.emplace_back(slot.name, tensor);
    trainedSlots_.push_back({slot, tensor});
  }

  int64_t samplesOf(const Tensors& batch) const {
    return batch.at(declaration_.columns.front().name).size(0);
  }

  using Inputs = c10::Dict<std::string, torch::Tensor>;

  static Inputs inputsOf(const Tensors& batch, const std::vector<ColumnSpec>& columns) {
    Inputs inputs;
    for (const ColumnSpec& column : columns) inputs.insert(column.name, batch.at(column.name));
    return inputs;
  }

  /// These columns, and the rows of the ids in them.
  Inputs withRows(const Tensors& batch, const std::vector<ColumnSpec>& columns) const {
    Inputs inputs = inputsOf(batch, columns);
    for (const auto& rows : declaration_.rows) {
      if (std::ranges::find(columns, rows.column, &ColumnSpec::name) == columns.end()) continue;
      std::vector<int64_t> shape = batch.at(rows.column).sizes().vec();
      shape.push_back(declaration_.tables[rows.table].dim);
      inputs.insert(rows.name, batch.at(rows.name).view(shape));
    }
    return inputs;
  }

  ModelOutputs run(const Tensors& batch) {
    return ModelOutputs(call("forward", withRows(batch, declaration_.columns)));
  }

  Tensors call(const std::string& method, const Inputs& inputs) {
    Tensors outputs;
    for (Trained& each : trainedSlots_) {
      each.version = each.tensor._version();
      each.guarded = isGuarded(each.tensor);
    }
    try {
      // Without the graph optimizer, which slows down the first steps and does not speed up later ones.
      const torch::jit::GraphOptimizerEnabledGuard plain(false);
      const c10::IValue returned = module_.get_method(method)({inputs});
      for (const auto& entry : returned.toGenericDict()) {
        outputs.emplace(entry.key().toStringRef(), entry.value().toTensor());
      }
    } catch (const std::exception& exception) {
      throw NetworkError(method + " failed: " + conciseMessage(exception));
    }
    checkTrained(method);
    checkFixed(method);
    return outputs;
  }

  /// Checks version counters, guarded memory, and that the attribute is still the same tensor.
  void checkTrained(const std::string& method) const {
    for (const Trained& each : trainedSlots_) {
      const c10::IValue& value = each.slot.value();
      const bool same = value.isTensor() && value.toTensor().is_same(each.tensor) &&
                        each.tensor._version() == each.version && !(each.guarded && wasWritten(each.tensor));
      if (same) continue;
      const std::string place = placeOfWrite(each.tensor);
      throw ParameterWritten(method + " wrote to parameter '" + each.slot.name + "'" +
                             (place.empty() ? "" : " (" + place + ")") +
                             ": only steps at the daemon change parameters; expected a module that only "
                             "reads them");
    }
  }

  void checkFixed(const std::string& method) const {
    for (const FixedValue& fixed : fixed_) {
      if (sameValue(fixed.copy, fixed.slot.value())) continue;
      throw NetworkError(method + " changed '" + fixed.slot.name +
                         "', which is no parameter: trainers do not share it, so the model would be scored "
                         "wrongly; expected a module that only reads it");
    }
  }

  const std::string path_;
  torch::jit::Module module_;
  const ModelDeclaration declaration_;
  std::vector<std::pair<std::string, torch::Tensor>> trained_;
  std::vector<Trained> trainedSlots_;
  std::vector<FixedValue> fixed_;
  std::optional<bool> mode_;  ///< training mode of module_; nullopt: as in the file
};

}  // namespace

std::shared_ptr<Network> loadScriptNetwork(const std::string& path) {
  requireFile(path);
  torch::jit::ExtraFilesMap files{{kDeclarationFile, ""}};
  auto module = loadScript(path, files);
  if (!module.ok()) throw NetworkError(module.message());
  const std::string& json = files.at(kDeclarationFile);
  if (json.empty()) {
    throw NetworkError(quotedPath(path) + " holds no " + kDeclarationFile +
                       ", which says what columns it takes; scripts/export_model writes one");
  }
  auto declaration = readDeclaration(json, quotedPath(path) + ": " + kDeclarationFile);
  if (!declaration.ok()) throw NetworkError(declaration.message());
  return std::make_shared<ScriptNetwork>(path, *std::move(module), *std::move(declaration));
}

}  // namespace psd
