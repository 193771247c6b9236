// The LibTorch models, tested through the Model interface.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "common/types/model_layout.h"
#include "test/support/catch.h"
#include "trainer/client/api/row_batch.h"
#include "trainer/dataset/random.h"
#include "trainer/dataset/synthetic.h"
#include "trainer/loop/rows_of_batch.h"
#include "trainer/model/device.h"
#include "trainer/model/model_list.h"

namespace psd::model_test {
namespace {

using Catch::Matchers::Contains;

std::unique_ptr<Model> make(std::string_view name, uint64_t seed = 1, uint32_t rank = 0) {
  const auto choice = chooseModel(name);
  PSD_REQUIRE_OK(choice);
  auto model = makeModel(*choice, {seed, Rank{rank}, Device{}, 1});
  PSD_REQUIRE_OK(model);
  return std::move(model).value();
}

Batch imagesBatch(uint32_t size) {
  std::vector<uint32_t> indices(size);
  std::iota(indices.begin(), indices.end(), 0u);
  Batch batch;
  PSD_REQUIRE_OK(makeSynthetic(size, Split::train, 5)->fill(indices, batch));
  return batch;
}

/// Rows for a batch with their initial values.
struct Rows {
  Rows(Model& model, Batch& batch, Purpose purpose) : batch(model.spec().tables) {
    this->batch.make(featuresOf(batch.rows().lookups = model.lookUp(batch, purpose)));
    for (uint32_t table = 0; table < this->batch.tableCount(); ++table) {
      for (size_t i = 0; i < this->batch.rowCount(table); ++i) {
        const uint32_t dim = this->batch.dim(table);
        model.spec().tables[table].initial.fill(this->batch.ids(table)[i],
                                                this->batch.rows(table).subspan(i * dim, dim));
      }
    }
    bindRows(this->batch, 0, batch);
  }
  RowBatch batch;
};

/// Synthetic values for any model.
Batch batchFor(const Model& model, size_t size) {
  std::vector<ColumnSpec> columns = model.inputs();
  for (ColumnSpec& column : columns) {
    std::replace(column.shape.begin(), column.shape.end(), ColumnSpec::kAny, uint64_t{6});
  }
  Batch batch;
  batch.reshape(columns, size);
  Random random(3);
  for (const ColumnSpec& column : columns) {
    for (float& value : batch.values<float>(column.name))
      value = static_cast<float>(random.below(256)) / 128 - 1;
    for (int64_t& value : batch.values<int64_t>(column.name)) {
      value = random.below(column.bound == 0 ? 50 : static_cast<uint32_t>(column.bound));
    }
  }
  return batch;
}

/// A model of the list, small if possible: each is created and run often.
std::unique_ptr<Model> makeSmall(std::string_view name) {
  if (name == "resnet20") return make("resnet20:width=4");
  if (name == "gpt") return make("gpt:layers=2,width=8,heads=2,context=8,vocabulary=16");
  return make(name);
}

/// The part of a flat array that one tensor takes.
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

TEST_CASE("the residual net and the transformer have the sizes of their papers") {
  const auto resnet = make("resnet20");
  CHECK(resnet->spec().parameterCount() == 269'434);  // 0.27 million; those of He et al. see 3 channels
  CHECK(resnet->spec().tensors.size() == 19 + 19 * 2 + 2);
  const auto gpt = make("gpt");
  CHECK(gpt->spec().parameterCount() == 842'496);
  CHECK(gpt->spec().tensors.size() == 2 + 4 * 12 + 2);
  CHECK_THAT(makeModel(*chooseModel("gpt:width=10"), {1, Rank{0}, Device{}, 1}).message(),
             Contains("gpt: width 10 is not a multiple of heads, 4"));
}

TEST_CASE("the transformer attends to no later token, and to no more than its context") {
  const auto gpt = make("gpt:layers=2,width=8,heads=2,context=4,vocabulary=16");
  const auto scoreOf = [&](std::vector<int64_t> tokens) {
    Batch batch;
    batch.reshape({{"tokens", ElementType::i64, {tokens.size()}, 16}}, 1);
    std::copy(tokens.begin(), tokens.end(), batch.values<int64_t>("tokens").begin());
    return gpt->score(batch);
  };
  const auto sumOf = [&](std::vector<int64_t> tokens) { return scoreOf(std::move(tokens))->metrics[0].sum; };
  // One more token does not change the predictions before it: the difference is the probabilities of the last
  // one.
  double chances = 0;
  for (int64_t last = 0; last < 16; ++last) {
    chances += std::exp(sumOf({3, 1, 4, 2}) - sumOf({3, 1, 4, 2, last}));
  }
  CHECK(close(chances, 1, 1e-4));
  CHECK(std::abs(sumOf({3, 1, 4, 2}) - sumOf({1, 3, 4, 2})) > 1e-4);  // but earlier tokens count
  CHECK_THAT(scoreOf({1, 2, 3, 4, 5, 6}).message(),
             Contains("the context of gpt is 4 tokens, but samples have 5"));
}

TEST_CASE("the flat arrays are aligned and have the length of the layout") {
  for (const ModelEntry& entry : modelList()) {
    const auto model = makeSmall(entry.name);
    CHECK(model->parameters().size() == ModelLayout(model->spec()).totalElements());
    CHECK(model->gradients().size() == model->parameters().size());
    CHECK(reinterpret_cast<uintptr_t>(model->parameters().data()) % 64 == 0);
    CHECK(reinterpret_cast<uintptr_t>(model->gradients().data()) % 64 == 0);
  }
}

TEST_CASE("the model computes with what is written to the flat parameters") {
  const auto mlp = make("mlp");
  const Batch batch = imagesBatch(20);
  std::fill(mlp->parameters().begin(), mlp->parameters().end(), 0.f);
  CHECK(close(mlp->computeGradients(batch).value(), std::log(10.0), 1e-6));

  // With all weights zero the output is the softmax of the last bias, and nothing else.
  const auto bias = tensor(*mlp, mlp->parameters(), "fc2.bias");
  for (size_t c = 0; c < 10; ++c) bias[c] = 0.1f * static_cast<float>(c);
  double sum = 0;
  for (const float value : bias) sum += std::exp(value);
  double expectedLoss = 0;
  std::vector<double> expectedGradient(10);
  for (size_t c = 0; c < 10; ++c) expectedGradient[c] = std::exp(bias[c]) / sum;
  const auto labels = batch.values<int64_t>("label");
  for (const int64_t label : labels) {
    expectedLoss -= std::log(std::exp(bias[label]) / sum) / 20;
    expectedGradient[label] -= 1.0 / 20;
  }
  // Twice: gradients are replaced, not added up.
  for (int repeat = 0; repeat < 2; ++repeat) {
    CHECK(close(mlp->computeGradients(batch).value(), expectedLoss, 1e-6));
    const auto gradient = tensor(*mlp, mlp->gradients(), "fc2.bias");
    for (size_t c = 0; c < 10; ++c) CHECK(close(gradient[c], expectedGradient[c], 1e-6));
  }
  const auto score = mlp->score(batch);
  PSD_REQUIRE_OK(score);
  CHECK(close(score->loss(), expectedLoss, 1e-6));
  CHECK(score->value("accuracy") == static_cast<double>(std::count(labels.begin(), labels.end(), 9)) / 20);
  CHECK(score->samples == 20);
}

TEST_CASE("the flat gradients point downhill in every tensor") {
  for (const ModelEntry& entry : modelList()) {
    const auto model = makeSmall(entry.name);
    Batch batch = batchFor(*model, 32);
    const Rows rows(*model, batch, Purpose::training);
    const std::vector<float> start = copy(model->parameters());
    const double before = model->score(batch)->loss();
    PSD_REQUIRE_OK(model->computeGradients(batch));
    for (const TensorSpec& each : model->spec().tensors) {
      INFO(entry.name << " " << each.name);
      std::copy(start.begin(), start.end(), model->parameters().begin());
      const auto values = tensor(*model, model->parameters(), each.name);
      const auto gradient = tensor(*model, model->gradients(), each.name);
      const double norm =
          std::sqrt(std::inner_product(gradient.begin(), gradient.end(), gradient.begin(), 0.0));
      REQUIRE(norm > 0);
      // A small step, since a model that predicts a mean is near the minimum soon; large enough to show in
      // float32.
      const auto step = static_cast<float>(std::clamp(0.1 * norm, 0.003, 0.02) / norm);
      for (size_t i = 0; i < values.size(); ++i) values[i] -= step * gradient[i];
      CHECK(model->score(batch)->loss() < before);
    }
  }
}

TEST_CASE("padding stays zero during computation") {
  const auto model = make("mlp");
  PSD_REQUIRE_OK(model->computeGradients(imagesBatch(4)));
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
    const auto model = makeSmall(entry.name);
    std::vector<int> reported(model->parameters().size());
    std::vector<float> whenReported(reported.size());
    size_t reports = 0;
    Batch batch = batchFor(*model, 4);
    const Rows rows(*model, batch, Purpose::training);
    PSD_REQUIRE_OK(model->computeGradients(batch, [&](uint64_t begin, uint64_t count) {
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

TEST_CASE("alternating arrays give the same gradients and keep the earlier ones") {
  const Batch first = imagesBatch(8);
  const auto plain = make("mlp"), turning = make("mlp");
  PSD_REQUIRE_OK(turning->reserve(2, true));
  std::copy(turning->parameters().begin(), turning->parameters().end(), turning->spareParameters().begin());
  std::span<const float> before;
  std::vector<float> expectedBefore;
  for (int step = 0; step < 4; ++step) {
    INFO("step " << step);
    // Parameters that differ from step to step, copied into the spare array of the one model.
    plain->parameters()[step] += 0.5f;
    std::copy(plain->parameters().begin(), plain->parameters().end(), turning->spareParameters().begin());
    const float* spare = turning->spareParameters().data();
    turning->swapParameters();
    CHECK(turning->parameters().data() == spare);
    turning->rotateGradients();
    const auto loss = turning->computeGradients(first);
    PSD_REQUIRE_OK(loss);
    CHECK(*loss == plain->computeGradients(first).value());
    CHECK(copy(turning->gradients()) == copy(plain->gradients()));
    CHECK(copy(before) == expectedBefore);
    before = turning->gradients();
    expectedBefore = copy(before);
  }
}

TEST_CASE("only the seed determines the initial values") {
  const auto first = make("mnist_cnn", 7, 0);
  const std::vector<float> values = copy(first->parameters());
  PSD_REQUIRE_OK(first->computeGradients(imagesBatch(4)));  // uses the generator
  CHECK(copy(make("mnist_cnn", 7, 3)->parameters()) == values);
  CHECK(copy(make("mnist_cnn", 8, 0)->parameters()) != values);
}

TEST_CASE("dropout differs between ranks, repeats with the seed, and scoring has none") {
  const Batch batch = imagesBatch(8);
  const auto trainLoss = [&](uint32_t rank) {
    return make("mnist_cnn", 7, rank)->computeGradients(batch).value();
  };
  CHECK(trainLoss(0) == trainLoss(0));
  CHECK(trainLoss(0) != trainLoss(1));
  const auto late = make("mnist_cnn", 7, 0);
  late->assignRank(Rank{1});
  const double loss = late->computeGradients(batch).value();
  CHECK(loss == trainLoss(1));
  const auto model = make("mnist_cnn");
  CHECK(model->score(batch)->loss() == model->score(batch)->loss());
}

TEST_CASE("LibTorch's errors become one line") {
  const auto model = make("mlp");
  Batch batch = imagesBatch(4);
  batch.values<int64_t>("label")[2] = 10;
  const auto loss = model->computeGradients(batch);
  REQUIRE_FALSE(loss.ok());
  CHECK_THAT(loss.message(), Contains("LibTorch on cpu: ") && Contains("out of bounds"));
  CHECK(loss.message().find('\n') == std::string::npos);
}

TEST_CASE("an unknown model gets an error with the list and the nearest name") {
  const auto unknown = chooseModel("mnist_cn");
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.message() ==
        "'mnist_cn' is not a model; expected one of mlp, mnist_cnn, resnet20, lstm_lm, gpt, mf, dlrm, svm, "
        "logistic, fm, deepfm, "
        "or a "
        "file whose name "
        "ends with .pt or .pt2. Did you mean mnist_cnn?");
}

TEST_CASE("a device is chosen from those available") {
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

}  // namespace psd::model_test
