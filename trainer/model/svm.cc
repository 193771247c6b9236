#include <memory>

#include <torch/utils.h>

#include "trainer/model/model_list.h"
#include "trainer/model/network.h"
#include "trainer/model/row_tables.h"

namespace psd {
namespace {

/// A linear support vector machine over sparse vectors, as in Hogwild! (Niu, Recht, Ré, Wright 2011, section
/// 3): the table "weights" has a value per word, and a document's margin is their weighted sum plus a bias.
/// The loss is the mean over the documents of the hinge loss plus `decay` times the squares of the document's
/// values. Owned by one thread.
class SparseSvm : public Network {
 public:
  explicit SparseSvm(double decay) : decay_(decay), bias_(register_parameter("bias", torch::zeros({1}))) {}

  std::vector<ColumnSpec> inputs() const override {
    return {{"words", ElementType::i64, {ColumnSpec::kAny}},
            {"weights", ElementType::f32, {ColumnSpec::kAny}},
            {"label", ElementType::i64, {}, 2}};
  }

  std::vector<TableSpec> tables() const override {
    return tablesOf({"weights"}, 1, {RowInitial::Kind::zero, 0});
  }

  std::vector<RowLookup> lookUp(const Batch& batch, Purpose) override {
    return {lookUpColumn(batch, "words", "words.rows", 0)};
  }

  torch::Tensor loss(const Tensors& batch) override { return losses(batch, margins(batch)).mean(); }

  std::vector<ColumnSpec> outputInputs() const override {
    return {{"words", ElementType::i64, {ColumnSpec::kAny}},
            {"weights", ElementType::f32, {ColumnSpec::kAny}}};
  }

  Tensors outputs(const Tensors& batch) override {
    Tensors outputs;
    outputs.emplace("margin", margins(batch));
    if (decay_ != 0) outputs.emplace("penalty", penalties(batch));
    return outputs;
  }

  LossSpec outputLoss() const override {
    return {LossKind::hinge, "margin", inputs().back(), decay_ != 0 ? "penalty" : ""};
  }

  Score score(const Tensors& batch) override {
    const torch::Tensor margin = margins(batch);
    const auto samples = static_cast<double>(margin.size(0));
    const auto right = ((margin > 0) == (batch.at("label") > 0)).sum().item<double>();
    return {static_cast<uint64_t>(samples),
            {Metric::of("loss", MetricKind::mean, losses(batch, margin).sum().item<double>(), samples),
             Metric::of("accuracy", MetricKind::share, right, samples)}};
  }

 private:
  /// [n, words of each]
  static torch::Tensor values(const Tensors& batch) {
    return batch.at("words.rows").view_as(batch.at("weights"));
  }

  /// [n]
  torch::Tensor margins(const Tensors& batch) const {
    return (values(batch) * batch.at("weights")).sum(1) + bias_;
  }

  torch::Tensor losses(const Tensors& batch, const torch::Tensor& margin) const {
    const torch::Tensor sign = batch.at("label").to(torch::kFloat32) * 2 - 1;
    return torch::relu(1 - sign * margin) + penalties(batch);
  }

  /// [n]
  torch::Tensor penalties(const Tensors& batch) const { return decay_ * values(batch).square().sum(1); }

  const double decay_;
  torch::Tensor bias_;
};

}  // namespace

NetworkMaker readSvm(NamedOptions& given) {
  const double decay = given.number("decay", 1e-5, 0, 100);
  return [decay] { return std::make_shared<SparseSvm>(decay); };
}

}  // namespace psd
