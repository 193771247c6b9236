#include "trainer/model/script_writes.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/passes/peephole.h>

namespace psd {
namespace {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;
using Object = c10::ivalue::Object;
using Parameters = std::vector<std::pair<std::string, torch::Tensor>>;
namespace attr = c10::attr;
namespace prim = c10::prim;

/// Follows parameters through a graph: from value to value, into views, lists and branches, until nothing new
/// is found. Errs towards a write. Used once.
class WriteSearch {
 public:
  explicit WriteSearch(const Parameters& parameters) : parameters_(parameters) {}

  std::optional<ParameterWrite> search(torch::jit::Graph& graph, const Object* self) {
    objects_[graph.inputs().at(0)] = self;
    do {
      changed_ = false;
      visit(*graph.block());
    } while (changed_ && !found_);
    return found_;
  }

 private:
  void visit(const Block& block) {
    for (const Node* node : block.nodes()) {
      if (!found_) visit(*node);
    }
  }

  void visit(const Node& node) {
    if (node.kind() == prim::GetAttr) return readAttribute(node);
    if (node.kind() == prim::SetAttr) return writeAttribute(node);
    if (node.kind() == prim::CallMethod || node.kind() == prim::CallFunction) return callUnknown(node);
    if (node.kind() == prim::Loop) enterLoop(node);
    for (const Block* block : node.blocks()) {
      visit(*block);
      const size_t leading = block->outputs().size() - node.outputs().size();  // a loop's condition
      for (size_t i = 0; i < node.outputs().size(); i++) {
        share(block->outputs()[i + leading], node.outputs()[i]);
      }
    }
    if (node.hasAttribute(attr::Subgraph)) enterSubgraph(node);
    if (node.blocks().empty()) apply(node);
  }

  void enterLoop(const Node& node) {
    const Block& body = *node.blocks().at(0);
    for (size_t i = 0; i < node.outputs().size(); i++) {
      share(node.inputs()[i + 2], body.inputs()[i + 1]);
      share(node.inputs()[i + 2], node.outputs()[i]);
      share(body.outputs()[i + 1], body.inputs()[i + 1]);
    }
  }

  /// As of a fork.
  void enterSubgraph(const Node& node) {
    const torch::jit::Graph& graph = *node.g(attr::Subgraph);
    for (size_t i = 0; i < node.inputs().size() && i < graph.inputs().size(); i++) {
      share(node.inputs()[i], graph.inputs()[i]);
    }
    visit(*graph.block());
    for (const Value* from : graph.outputs()) {
      for (const Value* to : node.outputs()) share(from, to);
    }
  }

  void readAttribute(const Node& node) {
    const auto object = objects_.find(node.input(0));
    if (object == objects_.end()) return share(node.input(0), node.output());
    const c10::IValue value = object->second->getAttr(node.s(attr::name));
    if (value.isModule()) {
      objects_[node.output()] = value.toObject().get();
      return;
    }
    if (const std::string* name = parameterIn(value)) hold(node.output(), *name);
    if (const auto kept = kept_.find({object->second, node.s(attr::name)}); kept != kept_.end()) {
      hold(node.output(), kept->second);
    }
  }

  void writeAttribute(const Node& node) {
    const auto object = objects_.find(node.input(0));
    if (object == objects_.end()) return share(node.input(1), node.input(0));
    const std::string& name = node.s(attr::name);
    if (const std::string* parameter = parameterIn(object->second->getAttr(name))) {
      return report(node, *parameter);
    }
    if (const std::string* parameter = heldBy(node.input(1))) {
      changed_ |= kept_.emplace(std::pair(object->second, name), *parameter).second;
    }
  }

  void callUnknown(const Node& node) {
    if (!parameters_.empty()) report(node, parameters_.front().first);
  }

  /// An operation on its inputs.
  void apply(const Node& node) {
    const c10::FunctionSchema* schema = node.maybeSchema();
    for (size_t i = 0; i < node.inputs().size(); i++) {
      const std::string* name = heldBy(node.inputs()[i]);
      if (name == nullptr) continue;
      const std::string parameter = *name;
      const c10::AliasInfo* alias = aliasOf(schema, i);
      if (alias != nullptr && writesTensors(*alias, node.inputs()[i])) return report(node, parameter);
      putIntoOthers(node, schema, i, parameter);
      giveToOutputs(node, schema, i, parameter);
    }
  }

  static const c10::AliasInfo* aliasOf(const c10::FunctionSchema* schema, size_t input) {
    if (schema == nullptr || input >= schema->arguments().size()) return nullptr;
    return schema->arguments()[input].alias_info();
  }
  static bool writesTensors(const c10::AliasInfo& alias, const Value* input) {
    if (alias.isWrite() && !isContainer(input)) return true;
    for (const c10::AliasInfo& inner : alias.containedTypes()) {
      if (inner.isWrite()) return true;
    }
    return false;
  }
  static bool isContainer(const Value* value) {
    const auto kind = value->type()->kind();
    return kind != c10::TypeKind::TensorType && kind != c10::TypeKind::OptionalType;
  }
  /// Whether a value of the type can have a part of a parameter's memory.
  static bool canHold(const Value* value) {
    switch (value->type()->kind()) {
      case c10::TypeKind::IntType:
      case c10::TypeKind::FloatType:
      case c10::TypeKind::BoolType:
      case c10::TypeKind::NumberType:
      case c10::TypeKind::StringType:
      case c10::TypeKind::NoneType:
      case c10::TypeKind::DeviceObjType: return false;
      default: return true;
    }
  }

  /// A list or dict that the operation changes has the parameter afterwards.
  void putIntoOthers(const Node& node, const c10::FunctionSchema* schema, size_t from,
                     const std::string& parameter) {
    for (size_t i = 0; i < node.inputs().size(); i++) {
      const c10::AliasInfo* alias = aliasOf(schema, i);
      if (i != from && alias != nullptr && alias->isWrite() && isContainer(node.inputs()[i])) {
        hold(node.inputs()[i], parameter);
      }
    }
  }
  void giveToOutputs(const Node& node, const c10::FunctionSchema* schema, size_t from,
                     const std::string& parameter) {
    for (size_t i = 0; i < node.outputs().size(); i++) {
      const bool told =
          schema != nullptr && i < schema->returns().size() && from < schema->arguments().size();
      if (!told || mayShare(*schema, from, node.inputs()[from], i, node.outputs()[i])) {
        hold(node.outputs()[i], parameter);
      }
    }
  }
  static bool mayShare(const c10::FunctionSchema& schema, size_t from, const Value* input, size_t to,
                       const Value* output) {
    const c10::AliasInfo* given = schema.returns()[to].alias_info();
    // What a list has, another may have too, and so may what is taken out of it.
    if (isContainer(input)) return isContainer(output) || given != nullptr;
    const c10::AliasInfo* taken = schema.arguments()[from].alias_info();
    if (taken == nullptr || given == nullptr) return false;
    const std::set<c10::Symbol> takenSets = setsOf(*taken), givenSets = setsOf(*given);
    const c10::Symbol any = c10::AliasInfo::wildcardSet();
    return takenSets.contains(any) || givenSets.contains(any) ||
           std::ranges::any_of(takenSets, [&](const c10::Symbol& each) { return givenSets.contains(each); });
  }
  static std::set<c10::Symbol> setsOf(const c10::AliasInfo& alias) {
    std::set<c10::Symbol> sets(alias.beforeSets().begin(), alias.beforeSets().end());
    for (const c10::AliasInfo& inner : alias.containedTypes()) sets.merge(setsOf(inner));
    return sets;
  }

  const std::string* parameterIn(const c10::IValue& value) const {
    c10::IValue::HashAliasedIValues inner;
    value.getSubValues(inner);
    for (const auto& [name, tensor] : parameters_) {
      for (const c10::IValue& each : inner) {
        if (each.isTensor() && each.toTensor().is_same(tensor)) return &name;
      }
    }
    return nullptr;
  }

  const std::string* heldBy(const Value* value) const {
    const auto found = held_.find(value);
    return found == held_.end() ? nullptr : &found->second;
  }
  void hold(const Value* value, const std::string& parameter) {
    if (canHold(value)) changed_ |= held_.emplace(value, parameter).second;
  }
  void share(const Value* from, const Value* to) {
    if (const std::string* name = heldBy(from)) hold(to, std::string(*name));
    if (const auto object = objects_.find(from); object != objects_.end()) {
      changed_ |= objects_.emplace(to, object->second).second;
    }
  }
  void report(const Node& node, const std::string& parameter) {
    if (found_) return;
    std::string operation = node.kind().toQualString();
    if (node.hasAttribute(attr::name)) operation += " " + node.s(attr::name);
    if (const auto where = node.sourceRange().file_line_col()) {
      operation += " (" + std::get<0>(*where) + ":" + std::to_string(std::get<1>(*where)) + ")";
    }
    found_ = ParameterWrite{parameter, std::move(operation)};
  }

  const Parameters& parameters_;
  bool changed_ = false;
  std::unordered_map<const Value*, const Object*> objects_;  ///< modules
  std::unordered_map<const Value*, std::string> held_;       ///< whose memory a value may have a part of
  std::map<std::pair<const Object*, std::string>, std::string> kept_;  ///< in attributes, as the method runs
  std::optional<ParameterWrite> found_;
};

}  // namespace

std::optional<ParameterWrite> findParameterWrite(const torch::jit::Module& module, const std::string& method,
                                                 const Parameters& parameters) {
  std::shared_ptr<torch::jit::Graph> graph =
      torch::jit::toGraphFunction(module.get_method(method).function()).graph()->copy();
  torch::jit::Inline(*graph);
  // Without the branches that are never taken, as those on arguments that are left out.
  torch::jit::PeepholeOptimize(graph);
  torch::jit::ConstantPropagation(graph);
  return WriteSearch(parameters).search(*graph, module._ivalue().get());
}

}  // namespace psd
