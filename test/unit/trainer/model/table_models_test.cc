// The models with embedding tables, tested through the Model interface.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "common/types/model_layout.h"
#include "test/support/catch.h"
#include "trainer/client/api/row_batch.h"
#include "trainer/dataset/dataset_list.h"
#include "trainer/dataset/random.h"
#include "trainer/loop/rows_of_batch.h"
#include "trainer/model/model_list.h"

namespace psd::table_models_test {
namespace {

using Catch::Matchers::Contains;

std::unique_ptr<Model> make(const std::string& spec, uint32_t rank = 0) {
  const auto choice = chooseModel(spec);
  PSD_REQUIRE_OK(choice);
  auto model = makeModel(*choice, {1, Rank{rank}, Device{}, 1});
  PSD_REQUIRE_OK(model);
  return std::move(*model);
}

/// A table of all rows that were ever requested, in this process.
class Rows {
 public:
  explicit Rows(const ModelSpec& model) : tables_(model.tables), batch_(model.tables) {}

  std::vector<float>& row(uint32_t table, uint64_t id) {
    auto [place, fresh] = rows_.try_emplace({table, id});
    if (fresh) {
      place->second.resize(tables_[table].dim);
      tables_[table].initial.fill(id, place->second);
    }
    return place->second;
  }
  /// Takes the rows of a batch for the model.
  void supplyRows(Model& model, Batch& batch, Purpose purpose) {
    batch.rows().lookups = model.lookUp(batch, purpose);
    batch_.make(featuresOf(batch.rows().lookups));
    refresh();
    bindRows(batch_, 0, batch);
  }
  /// The batch's rows again, with their current values.
  void refresh() {
    visit([&](uint32_t table, uint64_t id, size_t begin) {
      std::ranges::copy(row(table, id), batch_.rows(table).begin() + static_cast<ptrdiff_t>(begin));
    });
  }
  /// Calls `take(table, id, begin)` for each row of the batch; `begin`: the offset of its values in the
  /// table's block.
  template <class Take>
  void visit(const Take& take) {
    for (uint32_t table = 0; table < batch_.tableCount(); ++table) {
      for (size_t i = 0; i < batch_.rowCount(table); ++i)
        take(table, batch_.ids(table)[i], i * batch_.dim(table));
    }
  }
  RowBatch& batch() { return batch_; }

 private:
  const std::vector<TableSpec> tables_;
  RowBatch batch_;
  std::map<std::pair<uint32_t, uint64_t>, std::vector<float>> rows_;
};

Batch firstSamples(const std::string& data, uint32_t count) {
  const auto opened = openDataset(data, Split::train, {.seed = 1});
  PSD_REQUIRE_OK(opened);
  std::vector<uint32_t> indices(count);
  std::iota(indices.begin(), indices.end(), 0u);
  Batch batch;
  PSD_REQUIRE_OK((*opened)->fill(indices, batch));
  return batch;
}

Batch tokens(size_t size, uint64_t length, uint32_t vocabulary) {
  Batch batch;
  batch.reshape({{"tokens", ElementType::i64, {length + 1}, vocabulary}}, size);
  Random random(1);
  for (int64_t& token : batch.values<int64_t>("tokens")) token = random.below(vocabulary);
  return batch;
}

/// Examples of `width` features of 12. With `gaps` about a third of them are missing, and all of the first
/// example.
Batch sparseExamples(size_t size, uint64_t width, bool gaps) {
  Batch batch;
  batch.reshape({{"ids", ElementType::i64, {width}},
                 {"values", ElementType::f32, {width}},
                 {"label", ElementType::i64, {}, 2}},
                size);
  Random random(7);
  const auto ids = batch.values<int64_t>("ids"), labels = batch.values<int64_t>("label");
  const auto values = batch.values<float>("values");
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = random.below(12);
    values[i] = 0.25f * static_cast<float>(1 + random.below(8));
    if (gaps && (i < width || random.below(3) == 0)) values[i] = 0;
  }
  for (int64_t& label : labels) label = random.below(2);
  return batch;
}

/// A batch for each model with tables, in which some rows are repeated.
struct Case {
  std::string model;
  Batch batch;
};
std::vector<Case> cases() {
  std::vector<Case> all;
  all.push_back({"mf:dim=5,decay=0.1", firstSamples("ratings:users=6,items=5,samples=100", 40)});
  all.push_back({"dlrm:dim=4,hidden=6", firstSamples("clicks:scale=100000", 40)});
  all.push_back({"svm:decay=0.1", firstSamples("documents:words=9,length=5", 40)});
  for (const char* const model : {"logistic", "fm:dim=3", "deepfm:dim=3,fields=5,hidden=6"}) {
    for (const bool gaps : {false, true}) all.push_back({model, sparseExamples(30, 5, gaps)});
  }
  all.push_back({"lstm_lm:embedding=5,hidden=7,vocabulary=13,candidates=6", tokens(4, 9, 13)});
  return all;
}

}  // namespace

TEST_CASE("tables are part of the model, each with a seed that --seed does not change") {
  const auto tablesOf = [](const std::string& model) {
    const auto made = make(model);
    std::string text;
    for (const TableSpec& table : made->spec().tables) text += table.toString() + "\n";
    return text;
  };
  CHECK(tablesOf("mf") == "user rows[33] uniform 0.05 seed 1\nitem rows[33] uniform 0.05 seed 2\n");
  CHECK(tablesOf("lstm_lm") == "");
  CHECK_THAT(tablesOf("lstm_lm:candidates=64,hidden=100"),
             Contains("embedding rows[256] uniform 0.1 seed 1\noutput rows[101] uniform 0.1 seed 2\n"));
  const auto dlrm = make("dlrm:dim=8");
  REQUIRE(dlrm->spec().tables.size() == 26);
  CHECK(dlrm->spec().tables[25].toString() == "category25 rows[8] uniform 0.05 seed 26");
  CHECK(dlrm->spec().parameterCount() == 13 * 64 + 64 + 64 * 8 + 8 + (8 + 351) * 64 + 64 + 64 + 1);
  const auto mf = chooseModel("mf");
  CHECK((*makeModel(*mf, {1, Rank{0}, Device{}, 1}))->spec().signature() ==
        (*makeModel(*mf, {9, Rank{1}, Device{}, 1}))->spec().signature());
}

TEST_CASE("gradients of rows are the slopes of the loss in every table") {
  for (Case& each : cases()) {
    const auto model = make(each.model);
    Rows rows(model->spec());
    rows.supplyRows(*model, each.batch, Purpose::training);
    PSD_REQUIRE_OK(model->computeGradients(each.batch));
    std::vector<std::vector<float>> gradients;
    for (uint32_t table = 0; table < rows.batch().tableCount(); ++table) {
      gradients.emplace_back(rows.batch().gradients(table).begin(), rows.batch().gradients(table).end());
    }
    for (uint32_t table = 0; table < rows.batch().tableCount(); ++table) {
      INFO(each.model << " " << model->spec().tables[table].name);
      const std::span<float> values = rows.batch().rows(table);
      const std::vector<float> start(values.begin(), values.end());
      const std::vector<float>& gradient = gradients[table];
      const double norm =
          std::sqrt(std::inner_product(gradient.begin(), gradient.end(), gradient.begin(), 0.0));
      REQUIRE(norm > 1e-4);
      constexpr double kStep = 0.02;
      // The loss as in training: with the same candidates, as the batch still has them.
      const auto lossAt = [&](double step) {
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = start[i] + static_cast<float>(step / norm) * gradient[i];
        }
        const auto loss = model->computeGradients(each.batch);
        PSD_REQUIRE_OK(loss);
        return *loss;
      };
      const double slope = (lossAt(kStep) - lossAt(-kStep)) / (2 * kStep);
      CHECK(std::abs(slope - norm) < 0.01 * norm + 3e-5);
      std::ranges::copy(start, values.begin());
    }
  }
}

TEST_CASE("gradients of rows are added to existing ones, and those of the arena replaced") {
  for (Case& each : cases()) {
    INFO(each.model);
    const auto model = make(each.model);
    Rows rows(model->spec());
    rows.supplyRows(*model, each.batch, Purpose::training);
    PSD_REQUIRE_OK(model->computeGradients(each.batch));
    const std::vector<float> once(rows.batch().gradients(0).begin(), rows.batch().gradients(0).end());
    const std::vector<float> arena(model->gradients().begin(), model->gradients().end());
    PSD_REQUIRE_OK(model->computeGradients(each.batch));
    CHECK(std::ranges::equal(model->gradients(), arena));
    for (size_t i = 0; i < once.size(); ++i) {
      CHECK(std::abs(rows.batch().gradients(0)[i] - 2 * once[i]) <= 1e-6f + 1e-5f * std::abs(once[i]));
    }
  }
}

TEST_CASE("mf's loss and score match the formula") {
  Batch batch = firstSamples("ratings:users=6,items=5,samples=100", 30);
  const auto model = make("mf:dim=3,decay=0.1");
  model->parameters()[0] = 3.5f;
  Rows rows(model->spec());
  double squares = 0, penalty = 0;
  for (size_t n = 0; n < batch.size(); ++n) {
    const auto& u = rows.row(0, static_cast<uint64_t>(batch.values<int64_t>("user")[n]));
    const auto& i = rows.row(1, static_cast<uint64_t>(batch.values<int64_t>("item")[n]));
    double rating = 3.5 + u[3] + i[3];
    for (int d = 0; d < 3; ++d) rating += double{u[d]} * i[d];
    for (int d = 0; d < 4; ++d) penalty += 0.1 * (double{u[d]} * u[d] + double{i[d]} * i[d]);
    squares += std::pow(rating - batch.values<float>("rating")[n], 2);
  }
  rows.supplyRows(*model, batch, Purpose::training);
  const double loss = model->computeGradients(batch).value();
  CHECK(std::abs(loss - (squares + penalty) / 30) < 1e-5);
  const auto score = model->score(batch);
  PSD_REQUIRE_OK(score);
  CHECK(std::abs(score->loss() - loss) < 1e-5);
  CHECK(std::abs(score->value("rmse") - std::sqrt(squares / 30)) < 1e-5);
}

TEST_CASE("svm's score is the hinge loss and the share on the right side, calculated manually") {
  Batch batch;
  batch.reshape({{"words", ElementType::i64, {2}},
                 {"weights", ElementType::f32, {2}},
                 {"label", ElementType::i64, {}, 2}},
                3);
  std::ranges::copy(std::vector<int64_t>{7, 8, 8, 8, 9, 7}, batch.values<int64_t>("words").begin());
  std::ranges::copy(std::vector<float>{1, 2, 0.5, 0.5, 1, 1}, batch.values<float>("weights").begin());
  std::ranges::copy(std::vector<int64_t>{1, 0, 1}, batch.values<int64_t>("label").begin());
  const auto model = make("svm:decay=0.5");
  Rows rows(model->spec());
  rows.row(0, 7) = {3};
  rows.row(0, 8) = {-0.5};
  rows.supplyRows(*model, batch, Purpose::scoring);
  const auto score = model->score(batch);
  PSD_REQUIRE_OK(score);
  // Margins 3 − 1, −0.5 and 3, the words' squares 9.25, 0.5 and 9.
  CHECK(score->loss() == Approx((0 + 0.5 + 0 + 0.5 * (9.25 + 0.5 + 9)) / 3));
  CHECK(score->metrics.at(1).value() == Approx(1));
}

TEST_CASE("the scores of sparse models, calculated manually") {
  // Features 7 and 8 in the first example; the second has 7 twice; the third none.
  Batch batch;
  batch.reshape(
      {{"ids", ElementType::i64, {2}}, {"values", ElementType::f32, {2}}, {"label", ElementType::i64, {}, 2}},
      3);
  std::ranges::copy(std::vector<int64_t>{7, 8, 7, 7, 0, 9}, batch.values<int64_t>("ids").begin());
  std::ranges::copy(std::vector<float>{1, 0.5, 2, 1, 0, 0}, batch.values<float>("values").begin());
  std::ranges::copy(std::vector<int64_t>{1, 0, 1}, batch.values<int64_t>("label").begin());
  const auto check = [&](const std::string& name, const std::vector<std::vector<float>>& seven,
                         const std::vector<std::vector<float>>& eight, const std::vector<double>& logits) {
    INFO(name);
    const auto model = make(name);
    CHECK(model->countsWeights());
    model->parameters()[0] = 0.25f;  // the bias
    Rows rows(model->spec());
    for (uint32_t table = 0; table < seven.size(); ++table) {
      rows.row(table, 7) = seven[table];
      rows.row(table, 8) = eight[table];
    }
    rows.supplyRows(*model, batch, Purpose::scoring);
    CHECK(rows.batch().rowCount() == 2 * seven.size());  // no row for a value of 0
    const auto score = model->score(batch);
    PSD_REQUIRE_OK(score);
    double loss = 0, predictions = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      loss += std::log1p(std::exp(i == 1 ? logits[i] : -logits[i])) / 3;
      predictions += 1 / (1 + std::exp(-logits[i]));
    }
    CHECK(score->loss() == Approx(loss));
    CHECK(score->value("calibration") == Approx(predictions / 2));
    CHECK(score->value("auc") ==
          Approx((logits[0] > logits[1] ? 0.5 : 0) + (logits[2] > logits[1] ? 0.5 : 0)));
    CHECK(model->computeGradients(batch).value() == Approx(loss));
  };
  check("logistic", {{3}}, {{-1}}, {0.25 + 3 - 0.5, 0.25 + 9, 0.25});
  check("fm:dim=2", {{3}, {1, 2}}, {{-1}, {-3, 4}},
        {0.25 + 3 - 0.5 + 0.5 * (-3 + 8), 0.25 + 9 + 2 * (1 + 4), 0.25});
}

TEST_CASE("dlrm's score is the cross-entropy and the area under the curve of its logits") {
  Batch batch = firstSamples("clicks:scale=100000", 100);
  const auto model = make("dlrm:dim=4,hidden=6");
  Rows rows(model->spec());
  rows.supplyRows(*model, batch, Purpose::scoring);
  CHECK(rows.batch().rowCount() < 26 * 100 / 4);  // each once
  const auto score = model->score(batch);
  PSD_REQUIRE_OK(score);
  const auto labels = batch.values<int64_t>("label");
  const auto clicks = static_cast<size_t>(std::accumulate(labels.begin(), labels.end(), int64_t{0}));
  CHECK(score->metrics.at(1).positives.size() == clicks);
  CHECK(score->metrics.at(1).negatives.size() == 100 - clicks);
  CHECK(std::abs(score->value("auc") - 0.5) < 0.2);  // it is untrained
  double loss = 0;
  for (const float logit : score->metrics[1].positives) loss += std::log1p(std::exp(-logit)) / 100;
  for (const float logit : score->metrics[1].negatives) loss += std::log1p(std::exp(logit)) / 100;
  CHECK(std::abs(score->loss() - loss) < 1e-5);
}

TEST_CASE("the sampled softmax draws frequent tokens more often, each once, and others in another rank") {
  const Batch batch = tokens(2, 5, 1000);
  const auto candidatesOf = [&](Model& model) { return model.lookUp(batch, Purpose::training).at(2).ids; };
  const std::string spec = "lstm_lm:embedding=2,hidden=3,vocabulary=1000,candidates=100";
  const auto model = make(spec), same = make(spec), other = make(spec, 1);
  CHECK(candidatesOf(*make(spec)) == candidatesOf(*make(spec)));
  CHECK(candidatesOf(*make(spec)) != candidatesOf(*make(spec, 1)));
  std::vector<int> counts(1000);
  constexpr int kBatches = 2000;
  for (int i = 0; i < kBatches; ++i) {
    const auto drawn = candidatesOf(*model);
    CHECK(std::ranges::is_sorted(drawn));
    CHECK(std::ranges::adjacent_find(drawn) == drawn.end());
    for (const uint64_t token : drawn) ++counts.at(token);
  }
  for (const int token : {0, 1, 5, 20, 100, 500}) {
    INFO(token);
    const double chance = std::log((token + 2.0) / (token + 1.0)) / std::log(1001.0);
    const double expected = 1 - std::pow(1 - chance, 100);
    const double deviation = std::sqrt(expected * (1 - expected) / kBatches);
    CHECK(std::abs(counts[token] / double{kBatches} - expected) < 4 * deviation + 1e-3);
  }
}

TEST_CASE("with every token a candidate, and each as likely, the sampled loss is that of the whole softmax") {
  // Enough draws that all 5 tokens are candidates and the corrections vanish.
  const auto model = make("lstm_lm:embedding=3,hidden=4,vocabulary=5,candidates=1000");
  Batch batch = tokens(6, 8, 5);
  Rows rows(model->spec());
  rows.supplyRows(*model, batch, Purpose::training);
  REQUIRE(batch.rows().lookups[2].ids.size() == 5);
  const double sampled = model->computeGradients(batch).value();
  rows.supplyRows(*model, batch, Purpose::scoring);
  CHECK(batch.rows().lookups[1].ids.size() == 5);
  CHECK(std::abs(model->score(batch)->loss() - sampled) < 1e-5);
}

TEST_CASE("the corrected logits make the sampled softmax right on average") {
  // The sum of exp(logit) / expected count over the candidates has the sum of exp(logit) over the vocabulary
  // as its mean.
  const auto model = make("lstm_lm:embedding=2,hidden=3,vocabulary=60,candidates=12");
  Batch batch = tokens(1, 1, 60);
  const uint64_t target = static_cast<uint64_t>(batch.values<int64_t>("tokens")[1]);
  Rows rows(model->spec());
  for (uint64_t id = 0; id < 60; ++id) {
    std::vector<float>& row = rows.row(1, id);
    std::ranges::fill(row, 0.f);  // regardless of the memory
    row.back() = static_cast<float>(id % 7) / 3;
  }
  const auto chanceOf = [](uint64_t id) {
    const double each =
        std::log((static_cast<double>(id) + 2) / (static_cast<double>(id) + 1)) / std::log(61.0);
    return 1 - std::pow(1 - each, 12);
  };
  const auto weightOf = [&](uint64_t id) { return std::exp(static_cast<double>(rows.row(1, id).back())); };
  double partition = 0, mean = 0;
  for (uint64_t id = 0; id < 60; ++id) partition += id == target ? 0 : weightOf(id);
  constexpr int kDraws = 3000;
  for (int i = 0; i < kDraws; ++i) {
    rows.supplyRows(*model, batch, Purpose::training);
    // loss = log((target + others) / target), the target corrected as well
    const double wanted = weightOf(target) / chanceOf(target);
    mean += (std::exp(model->computeGradients(batch).value()) - 1) * wanted / kDraws;
  }
  CHECK(std::abs(mean / partition - 1) < 0.05);
}

TEST_CASE("the language model with tables has the score of the dense one with the same values") {
  const auto dense = make("lstm_lm:embedding=4,hidden=6,vocabulary=30");
  const auto tables = make("lstm_lm:embedding=4,hidden=6,vocabulary=30,candidates=10");
  Rows rows(tables->spec());
  const ModelLayout denseLayout(dense->spec()), layout(tables->spec());
  const auto part = [](Model& model, const ModelLayout& of, size_t tensor) {
    return model.parameters().subspan(of.places()[tensor].begin, of.places()[tensor].count);
  };
  for (size_t i = 0; i < 4; ++i) {  // the LSTM's
    REQUIRE(dense->spec().tensors[i + 1].name == tables->spec().tensors[i].name);
    std::ranges::copy(part(*dense, denseLayout, i + 1), part(*tables, layout, i).begin());
  }
  for (uint64_t id = 0; id < 30; ++id) {
    std::ranges::copy(rows.row(0, id), part(*dense, denseLayout, 0).begin() + static_cast<ptrdiff_t>(id * 4));
    const std::vector<float>& output = rows.row(1, id);
    std::copy_n(output.begin(), 6, part(*dense, denseLayout, 5).begin() + static_cast<ptrdiff_t>(id * 6));
    part(*dense, denseLayout, 6)[id] = output.back();
  }
  Batch batch = tokens(50, 40, 30);  // 2,000 tokens: scored in pieces
  const auto expected = dense->score(batch);
  PSD_REQUIRE_OK(expected);
  rows.supplyRows(*tables, batch, Purpose::scoring);
  const auto score = tables->score(batch);
  PSD_REQUIRE_OK(score);
  CHECK(score->samples == 50);
  CHECK(std::abs(score->loss() - expected->loss()) < 1e-5);
  CHECK(score->value("accuracy") == expected->value("accuracy"));
  CHECK(std::abs(score->value("perplexity") - std::exp(score->loss())) < 1e-9);
}

}  // namespace psd::table_models_test
