#include <algorithm>
#include <memory>

#include <torch/utils.h>

#include "trainer/model/model_list.h"
#include "trainer/model/network.h"
#include "trainer/model/row_tables.h"

namespace psd {
namespace {

struct FactorOptions {
  uint32_t dim = 0;
  double decay = 0;
};

/// Biased matrix factorisation (Koren, Bell, Volinsky 2009): a rating is mean + bias of the user + bias of
/// the item + the product of their factors. A row of either table holds the factors and, as its last value,
/// the bias. The loss is the mean over the ratings of the squared error plus `decay` times the squares of
/// both rows.
class MatrixFactorization : public Network {
 public:
  explicit MatrixFactorization(const FactorOptions& options)
      : options_(options), mean_(register_parameter("mean", torch::zeros({1}))) {}

  std::vector<ColumnSpec> inputs() const override {
    return {{"user", ElementType::i64, {}}, {"item", ElementType::i64, {}}, {"rating", ElementType::f32, {}}};
  }

  std::vector<TableSpec> tables() const override {
    return tablesOf({"user", "item"}, options_.dim + 1, {RowInitial::Kind::uniform, kInitialScale});
  }

  std::vector<RowLookup> lookUp(const Batch& batch, Purpose) override {
    return {lookUpColumn(batch, "user", "user.rows", kUser), lookUpColumn(batch, "item", "item.rows", kItem)};
  }

  torch::Tensor loss(const Tensors& batch) override { return losses(batch).mean(); }

  std::vector<ColumnSpec> outputInputs() const override {
    return {{"user", ElementType::i64, {}}, {"item", ElementType::i64, {}}};
  }

  Tensors outputs(const Tensors& batch) override {
    Tensors outputs;
    outputs.emplace("prediction", predictions(batch));
    if (options_.decay != 0) outputs.emplace("penalty", penalties(batch));
    return outputs;
  }

  LossSpec outputLoss() const override {
    return {LossKind::squaredError, "prediction", inputs().back(), options_.decay != 0 ? "penalty" : ""};
  }

  Score score(const Tensors& batch) override {
    const auto samples = static_cast<double>(batch.at("rating").size(0));
    return {static_cast<uint64_t>(samples),
            {Metric::of("loss", MetricKind::mean, losses(batch).sum().item<double>(), samples),
             Metric::of("rmse", MetricKind::root, errors(batch).square().sum().item<double>(), samples)}};
  }

 private:
  static constexpr uint32_t kUser = 0, kItem = 1;
  static constexpr float kInitialScale = 0.05f;

  torch::Tensor predictions(const Tensors& batch) const {
    const torch::Tensor &user = batch.at("user.rows"), &item = batch.at("item.rows");
    const torch::Tensor product = (user.slice(1, 0, -1) * item.slice(1, 0, -1)).sum(1);
    return mean_ + user.select(1, -1) + item.select(1, -1) + product;
  }

  torch::Tensor errors(const Tensors& batch) const { return predictions(batch) - batch.at("rating"); }

  torch::Tensor penalties(const Tensors& batch) const {
    const auto squares = [&](const char* rows) { return batch.at(rows).square().sum(1); };
    return options_.decay * (squares("user.rows") + squares("item.rows"));
  }

  torch::Tensor losses(const Tensors& batch) const { return errors(batch).square() + penalties(batch); }

  const FactorOptions options_;
  torch::Tensor mean_;
};

}  // namespace

NetworkMaker readMf(NamedOptions& given) {
  constexpr uint64_t kDimMax = kTableDimMax - 1;
  FactorOptions options;
  options.dim = static_cast<uint32_t>(given.count("dim", 32, 1, kDimMax));
  options.decay = given.number("decay", 0.05, 0, 100);
  return [options] { return std::make_shared<MatrixFactorization>(options); };
}

}  // namespace psd
