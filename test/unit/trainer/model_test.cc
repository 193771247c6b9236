// The LibTorch models, seen through the Model interface.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "common/types/model_layout.h"
#include "test/support/catch.h"
#include "trainer/dataset/synthetic.h"
#include "trainer/loop/batches.h"
#include "trainer/model/device.h"
#include "trainer/model/model_list.h"

namespace psd {
namespace {

using Catch::Matchers::Contains;

std::unique_ptr<Model> make(std::string_view name, uint64_t seed = 1, uint32_t rank = 0) {
  const auto entry = findModel(name);
  PSD_REQUIRE_OK(entry);
  auto model = makeModel(**entry, {seed, Rank{rank}, Device{}, 1});
  PSD_REQUIRE_OK(model);
  return std::move(model).value();
}

Batch someBatch(uint32_t size) {
  std::vector<uint32_t> indices(size);
  std::iota(indices.begin(), indices.end(), 0u);
  Batch batch;
  makeSynthetic(size, Split::train, 5)->fill(indices, batch);
  return batch;
}

/// Part of a flat array that one tensor takes.
template <class T>
std::span<T> tensor(const Model& model, std::span<T> flat, const std::string& name) {
  const ModelLayout layout(model.spec());
  for (size_t i = 0; i < layout.places().size(); ++i) {
    if (model.spec().tensors[i].name == name) {
      return flat.subspan(layout.places()[i].begin, layout.places()[i].count);
    }
  }
  FAIL("no tensor " << name);
  return {};
}

std::vector<float> copy(std::span<const float> values) { return {values.begin(), values.end()}; }

bool close(double a, double b, double tolerance) { return std::abs(a - b) <= tolerance; }

}  // namespace

TEST_CASE("the models have PyTorch's tensors") {
  const auto mlp = make("mlp");
  CHECK(mlp->spec().parameterCount() == 203'530);
  REQUIRE(mlp->spec().tensors.size() == 4);
  CHECK(mlp->spec().tensors[0].toString() == "fc1.weight f32[256,784]");

  const auto cnn = make("mnist_cnn");
  CHECK(cnn->spec().name == "mnist_cnn");
  CHECK(cnn->spec().parameterCount() == 1'199'882);
  std::vector<std::string> names;
  for (const TensorSpec& each : cnn->spec().tensors) names.push_back(each.toString());
  CHECK(names == std::vector<std::string>{"conv1.weight f32[32,1,3,3]", "conv1.bias f32[32]",
                                          "conv2.weight f32[64,32,3,3]", "conv2.bias f32[64]",
                                          "fc1.weight f32[128,9216]", "fc1.bias f32[128]",
                                          "fc2.weight f32[10,128]", "fc2.bias f32[10]"});
}

TEST_CASE("the flat arrays are aligned and as long as the layout") {
  for (const ModelEntry& entry : modelList()) {
    const auto model = make(entry.name);
    CHECK(model->parameters().size() == ModelLayout(model->spec()).totalElements());
    CHECK(model->gradients().size() == model->parameters().size());
    CHECK(reinterpret_cast<uintptr_t>(model->parameters().data()) % 64 == 0);
    CHECK(reinterpret_cast<uintptr_t>(model->gradients().data()) % 64 == 0);
  }
}

TEST_CASE("what is written to the flat parameters is what the model computes with") {
  const auto mlp = make("mlp");
  const Batch batch = someBatch(20);
  std::fill(mlp->parameters().begin(), mlp->parameters().end(), 0.f);
  CHECK(close(mlp->computeGradients(viewOf(batch)).value(), std::log(10.0), 1e-6));

  // With all weights zero the output is the softmax of the last bias, and nothing else.
  const auto bias = tensor(*mlp, mlp->parameters(), "fc2.bias");
  for (size_t c = 0; c < 10; ++c) bias[c] = 0.1f * static_cast<float>(c);
  double sum = 0;
  for (const float value : bias) sum += std::exp(value);
  double expectedLoss = 0;
  std::vector<double> expectedGradient(10);
  for (size_t c = 0; c < 10; ++c) expectedGradient[c] = std::exp(bias[c]) / sum;
  for (const int64_t label : batch.labels) {
    expectedLoss -= std::log(std::exp(bias[label]) / sum) / 20;
    expectedGradient[label] -= 1.0 / 20;
  }
  // Twice: gradients are replaced, not added up.
  for (int repeat = 0; repeat < 2; ++repeat) {
    CHECK(close(mlp->computeGradients(viewOf(batch)).value(), expectedLoss, 1e-6));
    const auto gradient = tensor(*mlp, mlp->gradients(), "fc2.bias");
    for (size_t c = 0; c < 10; ++c) CHECK(close(gradient[c], expectedGradient[c], 1e-6));
  }
  const auto score = mlp->score(viewOf(batch));
  PSD_REQUIRE_OK(score);
  CHECK(close(score->meanLoss(), expectedLoss, 1e-6));
  CHECK(score->correct == static_cast<uint64_t>(std::count(batch.labels.begin(), batch.labels.end(), 9)));
  CHECK(score->samples == 20);
}

TEST_CASE("the flat gradients point downhill in every tensor") {
  for (const ModelEntry& entry : modelList()) {
    const auto model = make(entry.name);
    const Batch batch = someBatch(32);
    const std::vector<float> start = copy(model->parameters());
    const double before = model->score(viewOf(batch))->meanLoss();
    PSD_REQUIRE_OK(model->computeGradients(viewOf(batch)));
    for (const TensorSpec& each : model->spec().tensors) {
      INFO(entry.name << " " << each.name);
      std::copy(start.begin(), start.end(), model->parameters().begin());
      const auto values = tensor(*model, model->parameters(), each.name);
      const auto gradient = tensor(*model, model->gradients(), each.name);
      const double norm =
          std::sqrt(std::inner_product(gradient.begin(), gradient.end(), gradient.begin(), 0.0));
      REQUIRE(norm > 0);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] -= static_cast<float>(0.02 / norm) * gradient[i];
      }
      CHECK(model->score(viewOf(batch))->meanLoss() < before);
    }
  }
}

TEST_CASE("padding stays zero through computing") {
  const auto model = make("mlp");
  PSD_REQUIRE_OK(model->computeGradients(viewOf(someBatch(4))));
  const ModelLayout layout(model->spec());
  for (size_t i = 0; i < layout.places().size(); ++i) {
    const TensorPlace& place = layout.places()[i];
    const uint64_t next =
        i + 1 < layout.places().size() ? layout.places()[i + 1].begin : layout.totalElements();
    for (uint64_t e = place.begin + place.count; e < next; ++e) {
      CHECK(model->parameters()[e] == 0.f);
      CHECK(model->gradients()[e] == 0.f);
    }
  }
}

TEST_CASE("gradients are reported once, when they are final, and before the pass is over") {
  for (const ModelEntry& entry : modelList()) {
    INFO(entry.name);
    const auto model = make(entry.name);
    std::vector<int> reported(model->parameters().size());
    std::vector<float> whenReported(reported.size());
    size_t reports = 0;
    PSD_REQUIRE_OK(model->computeGradients(viewOf(someBatch(4)), [&](uint64_t begin, uint64_t count) {
      ++reports;
      for (uint64_t i = begin; i < begin + count; ++i) {
        ++reported.at(i);
        whenReported[i] = model->gradients()[i];
      }
    }));
    CHECK(reports == model->spec().tensors.size());
    CHECK(std::all_of(reported.begin(), reported.end(), [](int times) { return times == 1; }));
    CHECK(whenReported == copy(model->gradients()));
  }
}

TEST_CASE("arrays that take turns give the same gradients and keep the earlier ones") {
  const Batch first = someBatch(8);
  const auto plain = make("mlp"), turning = make("mlp");
  PSD_REQUIRE_OK(turning->reserve(2, true));
  std::copy(turning->parameters().begin(), turning->parameters().end(), turning->spareParameters().begin());
  std::span<const float> before;
  std::vector<float> expectedBefore;
  for (int step = 0; step < 4; ++step) {
    INFO("step " << step);
    // Parameters that differ from step to step, put into the spare array of the one model.
    plain->parameters()[step] += 0.5f;
    std::copy(plain->parameters().begin(), plain->parameters().end(), turning->spareParameters().begin());
    const float* spare = turning->spareParameters().data();
    turning->swapParameters();
    CHECK(turning->parameters().data() == spare);
    turning->rotateGradients();
    const auto loss = turning->computeGradients(viewOf(first));
    PSD_REQUIRE_OK(loss);
    CHECK(*loss == plain->computeGradients(viewOf(first)).value());
    CHECK(copy(turning->gradients()) == copy(plain->gradients()));
    CHECK(copy(before) == expectedBefore);
    before = turning->gradients();
    expectedBefore = copy(before);
  }
}

TEST_CASE("the seed alone decides the initial values") {
  const auto first = make("mnist_cnn", 7, 0);
  const std::vector<float> values = copy(first->parameters());
  PSD_REQUIRE_OK(first->computeGradients(viewOf(someBatch(4))));  // uses the generator
  CHECK(copy(make("mnist_cnn", 7, 3)->parameters()) == values);
  CHECK(copy(make("mnist_cnn", 8, 0)->parameters()) != values);
}

TEST_CASE("dropout differs between ranks, repeats with the seed, and scoring has none") {
  const Batch batch = someBatch(8);
  const auto trainLoss = [&](uint32_t rank) {
    return make("mnist_cnn", 7, rank)->computeGradients(viewOf(batch)).value();
  };
  CHECK(trainLoss(0) == trainLoss(0));
  CHECK(trainLoss(0) != trainLoss(1));
  const auto late = make("mnist_cnn", 7, 0);
  late->becomeRank(Rank{1});
  const double loss = late->computeGradients(viewOf(batch)).value();
  CHECK(loss == trainLoss(1));
  const auto model = make("mnist_cnn");
  CHECK(model->score(viewOf(batch))->lossSum == model->score(viewOf(batch))->lossSum);
}

TEST_CASE("LibTorch's complaints become one line") {
  const auto model = make("mlp");
  Batch batch = someBatch(4);
  batch.labels[2] = 10;
  const auto loss = model->computeGradients(viewOf(batch));
  REQUIRE_FALSE(loss.ok());
  CHECK_THAT(loss.message(), Contains("LibTorch on cpu: ") && Contains("out of bounds"));
  CHECK(loss.message().find('\n') == std::string::npos);
}

TEST_CASE("an unknown model is answered with the list and the nearest") {
  const auto unknown = findModel("mnist_cn");
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.message() ==
        "'mnist_cn' is not a model; expected one of mlp, mnist_cnn. Did you mean mnist_cnn?");
}

TEST_CASE("a device is chosen from what is there") {
  CHECK(selectDevice("cpu", 3, 4)->isCpu());
  CHECK(selectDevice("auto", 3, 0)->isCpu());
  CHECK(selectDevice("auto", 3, 2)->cuda == 1);
  CHECK(selectDevice("cuda:1", 0, 2)->cuda == 1);
  CHECK(selectDevice("cuda:1", 0, 2)->toString() == "cuda:1");
  CHECK_THAT(selectDevice("cuda:2", 0, 2).message(),
             Contains("cuda:2 is not there; this machine shows 2 CUDA device(s)"));
  CHECK_THAT(selectDevice("cuda:0", 0, 0).message(), Contains("no CUDA device"));
  for (const char* request : {"gpu", "cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", ""}) {
    CHECK_THAT(selectDevice(request, 0, 2).message(), Contains("expected auto, cpu or cuda:N"));
  }
}

}  // namespace psd
