#include "common/plan/fragment_plan.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "common/plan/model_partitions.h"
#include "common/text/text.h"

namespace psd {
namespace {

/// The name up to its first numeric component, "layers.3" of "layers.3.mlp.weight"; empty: there is none.
std::string_view blockOf(std::string_view name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    const bool number =
        !part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    if (number && begin > 0) return name.substr(0, end);
    begin = end + 1;
  }
  return {};
}

}  // namespace

std::vector<uint32_t> planFragments(const ModelSpec& model, uint32_t fragments) {
  std::map<std::string_view, uint32_t> blocks;  // numbered in order of appearance
  for (const TensorSpec& tensor : model.tensors) {
    if (const auto block = blockOf(tensor.name); !block.empty()) {
      blocks.emplace(block, static_cast<uint32_t>(blocks.size()));
    }
  }
  if (blocks.size() < fragments) blocks.clear();
  std::vector<uint32_t> fragmentOf(model.tensors.size());
  std::vector<uint64_t> elements(fragments);
  std::vector<size_t> others;
  for (size_t i = 0; i < model.tensors.size(); i++) {
    const auto block = blocks.find(blockOf(model.tensors[i].name));
    if (block == blocks.end()) {
      others.push_back(i);
      continue;
    }
    fragmentOf[i] = block->second % fragments;
    elements[fragmentOf[i]] += model.tensors[i].elementCount();
  }
  const auto largerFirst = [&](size_t a, size_t b) {
    return model.tensors[a].elementCount() > model.tensors[b].elementCount();
  };
  std::ranges::stable_sort(others, largerFirst);
  for (const size_t i : others) {
    const auto smallest = std::ranges::min_element(elements);
    fragmentOf[i] = static_cast<uint32_t>(smallest - elements.begin());
    *smallest += model.tensors[i].elementCount();
  }
  return fragmentOf;
}

Result<std::vector<uint32_t>> fragmentsOf(const ModelSpec& model, uint32_t fragments) {
  if (model.partition.isWhole()) return planFragments(model, fragments);
  if (!model.whole) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("{} of '{}' lacks the tensors of the whole model, from which its fragments "
                             "are computed: it comes from an older version",
                             model.partition.toString(), printable(model.name))};
  }
  const ModelSpec whole{model.name, *model.whole, model.tables};
  PSD_ASSIGN_OR_RETURN(const auto partitions, partitionModel(whole, model.partition.of));
  if (partitions[model.partition.index].spec.signature() != model.signature()) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("the tensors of {} do not match those of the whole model '{}'",
                             model.partition.toString(), printable(model.name))};
  }
  const std::vector<uint32_t> plan = planFragments(whole, fragments);
  std::vector<uint32_t> fragmentOf;
  size_t at = 0;  // both are in the same order
  for (const TensorSpec& tensor : model.tensors) {
    while (whole.tensors[at].name != wholeName(tensor.name)) at++;
    fragmentOf.push_back(plan[at]);
  }
  return fragmentOf;
}

}  // namespace psd
