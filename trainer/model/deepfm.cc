#include <memory>

#include <torch/nn/modules/linear.h>

#include "trainer/model/factorization_machine.h"
#include "trainer/model/model_list.h"

namespace psd {
namespace {

struct DeepOptions {
  uint32_t dim = 0;
  uint64_t fields = 0, hidden = 0;
};

/// A factorization machine plus a perceptron of two hidden layers, whose input are the factors of all
/// features, times their values (DeepFM, Guo et al. 2017). Every example has a place for a feature of each
/// field. Owned by one thread.
class DeepFm : public FactorizationMachine {
 public:
  explicit DeepFm(const DeepOptions& options)
      : FactorizationMachine(options.dim, options.fields),
        first_(linear("first", options.fields * options.dim, options.hidden)),
        second_(linear("second", options.hidden, options.hidden)),
        third_(linear("third", options.hidden, 1)) {}

 private:
  torch::Tensor logits(const Tensors& batch) override {
    const Features features(batch);
    const torch::Tensor factors = features.scaled(rowsOf(batch, kFactors));
    const torch::Tensor hidden = torch::relu(second_(torch::relu(first_(features.padded(factors)))));
    return FactorizationMachine::logits(batch, features, factors) + third_(hidden).squeeze(1);
  }

  torch::nn::Linear linear(const char* name, uint64_t in, uint64_t out) {
    return register_module(name, torch::nn::Linear(static_cast<int64_t>(in), static_cast<int64_t>(out)));
  }

  torch::nn::Linear first_, second_, third_;
};

}  // namespace

NetworkMaker readDeepFm(NamedOptions& given) {
  DeepOptions options;
  options.dim = static_cast<uint32_t>(given.count("dim", 8, 1, kTableDimMax));
  options.fields = given.count("fields", 39, 1, 1024);
  options.hidden = given.count("hidden", 64, 1, 1 << 16);
  return [options] { return std::make_shared<DeepFm>(options); };
}

}  // namespace psd
