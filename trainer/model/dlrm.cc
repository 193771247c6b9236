#include <memory>
#include <string>

#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "trainer/model/binary_classifier.h"
#include "trainer/model/model_list.h"
#include "trainer/model/row_tables.h"

namespace psd {
namespace {

struct ClickOptions {
  int64_t dim = 0, hidden = 0, numbers = 0, categories = 0;
};

/// Predicts clicks. After Naumov et al. 2019 (DLRM): a perceptron maps the numbers to a vector, each category
/// has a table of such vectors, and a second perceptron takes the first vector and the dot products of all
/// pairs. Owned by one thread.
class ClickModel : public BinaryClassifier {
 public:
  explicit ClickModel(const ClickOptions& options)
      : options_(options),
        bottom1_(register_module("bottom1", torch::nn::Linear(options.numbers, options.hidden))),
        bottom2_(register_module("bottom2", torch::nn::Linear(options.hidden, options.dim))),
        top1_(register_module("top1", torch::nn::Linear(options.dim + pairs(), options.hidden))),
        top2_(register_module("top2", torch::nn::Linear(options.hidden, 1))) {
    for (int64_t i = 0; i < options.categories; ++i) lookups_.push_back("category" + std::to_string(i));
    const int64_t vectors = options.categories + 1;
    const torch::Tensor below = torch::tril_indices(vectors, vectors, -1);
    pairs_ = below[0] * vectors + below[1];
  }

  std::vector<ColumnSpec> inputs() const override {
    return {{"numbers", ElementType::f32, {static_cast<uint64_t>(options_.numbers)}},
            {"categories", ElementType::i64, {static_cast<uint64_t>(options_.categories)}},
            {"label", ElementType::i64, {}, 2}};
  }

  std::vector<TableSpec> tables() const override {
    return tablesOf(lookups_, static_cast<uint32_t>(options_.dim),
                    {RowInitial::Kind::uniform, kInitialScale});
  }

  std::vector<RowLookup> lookUp(const Batch& batch, Purpose) override {
    const auto ids = batch.values<int64_t>("categories");
    std::vector<RowLookup> lookups;
    for (size_t i = 0; i < lookups_.size(); ++i) {
      lookups.push_back({lookups_[i], static_cast<uint32_t>(i), {}});
      lookups.back().ids.reserve(batch.size());
      for (size_t at = i; at < ids.size(); at += lookups_.size()) {
        lookups.back().ids.push_back(static_cast<uint64_t>(ids[at]));
      }
    }
    return lookups;
  }

 private:
  static constexpr float kInitialScale = 0.05f;

  int64_t pairs() const { return (options_.categories + 1) * options_.categories / 2; }

  torch::Tensor logits(const Tensors& batch) override {
    const torch::Tensor numbers = bottom2_(torch::relu(bottom1_(batch.at("numbers"))));
    std::vector<torch::Tensor> vectors{numbers};
    for (const std::string& lookup : lookups_) vectors.push_back(batch.at(lookup));
    const torch::Tensor all = torch::stack(vectors, 1);
    const torch::Tensor products = torch::bmm(all, all.transpose(1, 2));
    const torch::Tensor below = products.flatten(1).index_select(1, pairs_.to(products.device()));
    return top2_(torch::relu(top1_(torch::cat({numbers, below}, 1)))).squeeze(1);
  }

  const ClickOptions options_;
  std::vector<std::string> lookups_;  ///< also the names of the tables
  torch::nn::Linear bottom1_, bottom2_, top1_, top2_;
  torch::Tensor pairs_;  ///< [pairs]: indices of the pairs in the flattened product matrix
};

}  // namespace

NetworkMaker readDlrm(NamedOptions& given) {
  ClickOptions options;
  options.dim = static_cast<int64_t>(given.count("dim", 16, 1, kTableDimMax));
  options.hidden = static_cast<int64_t>(given.count("hidden", 64, 1, 1 << 16));
  options.numbers = static_cast<int64_t>(given.count("numbers", 13, 1, 1 << 16));
  options.categories = static_cast<int64_t>(given.count("categories", 26, 1, 1024));
  return [options] { return std::make_shared<ClickModel>(options); };
}

}  // namespace psd
