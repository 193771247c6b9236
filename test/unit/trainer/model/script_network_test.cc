// A user's own models, as TorchScript files, tested through the Model interface.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/utils.h>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "trainer/client/api/row_batch.h"
#include "trainer/executor/stages/execution.h"
#include "trainer/loop/rows_of_batch.h"
#include "trainer/model/model_list.h"
#include "trainer/model/network.h"
#include "trainer/task/named_tensor.h"

namespace psd::script_network_test {
namespace {

using Catch::Matchers::Contains;

constexpr const char* kColumns =
    R"({"columns": {"x": "f32[2]", "y": "f32"}, "metrics": {"rmse": "root", "auc": "auc"}})";
/// A linear function of its input.
constexpr const char* kLinear = R"(
def forward(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:
    guess = torch.mv(batch["x"], self.weight) + self.shift
    squares = (guess - batch["y"]) ** 2
    return {"loss": squares.mean(), "rmse": torch.stack([squares.sum(), torch.ones_like(squares).sum()]),
            "auc": torch.stack([guess, (batch["y"] > 0).float()], 1)}
)";

/// A module under construction, and its file.
struct ScriptModule {
  explicit ScriptModule(const std::string& forward, const std::string& json = kColumns) : json(json) {
    module.register_parameter("weight", torch::tensor({1.f, 2.f}), false);
    module.register_parameter("shift", torch::tensor({0.5f}), false);
    for (const char* name : {"weight", "shift"}) {
      module.setattr(name, module.attr(name).toTensor().requires_grad_(true));
    }
    module.register_attribute("training", c10::BoolType::get(), true);
    code = forward;
  }

  std::string save() {
    module.define(code);
    module.save(path(), {{"psd.json", json}});
    return path();
  }
  std::string path() const { return folder.file("line.pt"); }

  testing::TempDir folder;
  torch::jit::Module module{"Line"};
  std::string code, json;
};

Result<std::unique_ptr<Model>> load(const std::string& path) {
  const auto choice = chooseModel(path);
  PSD_REQUIRE_OK(choice);
  return makeModel(*choice, {1, Rank{0}, Device{}, 1});
}

std::unique_ptr<Model> make(const std::string& path) {
  auto model = load(path);
  PSD_REQUIRE_OK(model);
  return std::move(*model);
}

Batch batchOf(const std::vector<float>& xs, const std::vector<float>& ys) {
  Batch batch;
  batch.reshape({{"x", ElementType::f32, {2}}, {"y", ElementType::f32, {}}}, ys.size());
  std::ranges::copy(xs, batch.values<float>("x").begin());
  std::ranges::copy(ys, batch.values<float>("y").begin());
  return batch;
}

/// The error of loading it.
std::string loadError(ScriptModule&& written) {
  const auto model = load(written.save());
  REQUIRE_FALSE(model.ok());
  CHECK(model.error().code == ErrorCode::invalidArgument);
  CHECK(model.message().find('\n') == std::string::npos);
  CHECK_THAT(model.message(), Catch::Matchers::StartsWith("'" + written.path() + "'"));
  return model.message();
}

/// The error of training a step with it.
std::string trainError(ScriptModule&& written) {
  const auto model = make(written.save());
  const auto loss = model->computeGradients(batchOf({1, 1, 2, 0}, {3, -1}));
  REQUIRE_FALSE(loss.ok());
  CHECK(loss.message().find('\n') == std::string::npos);
  CHECK_THAT(loss.message(), Catch::Matchers::StartsWith("'" + written.path() + "': forward"));
  return loss.message();
}

/// Computes gradients without autograd, like a compiled step: 3 for each element of `a`, 4 for `b`, and for
/// each row its position among the ids.
class OwnGradients : public Network {
 public:
  std::vector<std::pair<std::string, torch::Tensor>> trained() const override {
    return {{"a", a_}, {"b", b_}};
  }
  std::vector<ColumnSpec> inputs() const override { return {{"ids", ElementType::i64, {}}}; }
  std::vector<TableSpec> tables() const override { return {{"word", 2, {}}}; }
  std::vector<RowLookup> lookUp(const Batch& batch, Purpose) override {
    const auto ids = batch.values<int64_t>("ids");
    return {{"words", 0, {ids.begin(), ids.end()}}};
  }
  bool computesGradients() const override { return true; }
  GradientStep step(const Tensors& batch) override {
    const torch::Tensor& words = batch.at("words");
    const torch::Tensor places = torch::arange(words.size(0), torch::kFloat32).unsqueeze(1).expand({-1, 2});
    return {a_.sum().item<double>(), {torch::full({3}, 3.f), torch::full({}, 4.f)}, {{"words", places}}};
  }
  Score score(const Tensors&) override { return {}; }

 private:
  torch::Tensor a_ = torch::ones({3}), b_ = torch::zeros({});
};

std::string returning(const std::string& dict) {
  return "def forward(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:\n"
         "    out = torch.mv(batch[\"x\"], self.weight) + self.shift\n    return " +
         dict + "\n";
}

}  // namespace

TEST_CASE("a file's parameters are the model, with its values, loss, gradients and score") {
  ScriptModule written(kLinear);
  const auto model = make(written.save());
  CHECK(model->spec().name == "line");
  REQUIRE(model->spec().tensors.size() == 2);
  CHECK(model->spec().tensors[0].toString() == "weight f32[2]");
  CHECK(model->parameters()[0] == 1);
  CHECK(model->parameters()[1] == 2);
  CHECK(model->parameters()[16] == 0.5);
  CHECK(describeColumns(model->inputs()) == "x f32[2], y f32");

  // Predicts 3.5 and 2.5, errors 0.5 and 3.5.
  const Batch batch = batchOf({1, 1, 2, 0}, {3, -1});
  for (int repeat = 0; repeat < 2; ++repeat) {
    CHECK(model->computeGradients(batch).value() == Approx(6.25));
    CHECK(model->gradients()[0] == Approx(0.5 * 1 + 3.5 * 2));
    CHECK(model->gradients()[1] == Approx(0.5));
    CHECK(model->gradients()[16] == Approx(4));
  }
  const auto score = model->score(batch);
  PSD_REQUIRE_OK(score);
  CHECK(score->samples == 2);
  CHECK(score->loss() == Approx(6.25));
  CHECK(score->value("rmse") == Approx(2.5));
  CHECK(score->value("auc") == 1);
  // It computes with the pulled values.
  std::ranges::fill(model->parameters(), 0.f);
  CHECK(model->score(batch)->loss() == Approx(5));
}

TEST_CASE("a loss may be the mean over something other than samples") {
  ScriptModule written(returning(R"({"loss": out.mean(), "loss.weight": torch.tensor(6)})"),
                       R"({"columns": {"x": "f32[2]"}})");
  const auto model = make(written.save());
  Score score = model->score(batchOf({1, 1}, {0})).value();
  CHECK(score.metrics.at(0).weight == 6);
  score += model->score(batchOf({1, 1, 2, 0, 0, 0}, {0, 0, 0})).value();
  CHECK(score.loss() == Approx((3.5 + 6.5 / 3) / 2));
}

TEST_CASE("a module knows whether it is training") {
  ScriptModule written(returning(R"({"loss": out.mean() * (2 if self.training else 1)})"),
                       R"({"columns": {"x": "f32[2]"}})");
  const auto model = make(written.save());
  const Batch batch = batchOf({1, 1}, {0});
  CHECK(model->score(batch)->loss() == Approx(3.5));
  CHECK(model->computeGradients(batch).value() == Approx(7));
  CHECK(model->score(batch)->loss() == Approx(3.5));
}

TEST_CASE("parameters that share memory stay shared, and frozen ones are the file's") {
  ScriptModule written(returning(R"({"loss": (out * self.twin.sum() + self.frozen).mean()})"),
                       R"({"columns": {"x": "f32[2]"}})");
  written.module.register_parameter("twin", written.module.attr("weight").toTensor(), false);
  written.module.register_parameter("frozen", torch::tensor({4.f}), false);
  const auto model = make(written.save());
  CHECK(model->spec().tensors.size() == 2);
  const Batch batch = batchOf({1, 1}, {0});
  CHECK(model->computeGradients(batch).value() == Approx(3.5 * 3 + 4));
  CHECK(model->gradients()[0] == Approx(3 + 3.5));  // under both of its names
  model->parameters()[0] = 0;
  CHECK(model->score(batch)->loss() == Approx(2.5 * 2 + 4));
}

TEST_CASE("rows of tables have the shape of their ids, and their gradients are returned") {
  ScriptModule written(
      R"(
def forward(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:
    rows = batch["words"]
    assert rows.dim() == 3 and rows.size(1) == 2 and rows.size(2) == 3
    return {"loss": (rows.sum([1, 2]) * self.shift).mean()}
)",
      R"({"columns": {"ids": "i64[2]"}, "tables": {"word": {"dim": 3, "initial": "zero", "rows": {"words": "ids"}}}})");
  const auto model = make(written.save());
  REQUIRE(model->spec().tables.size() == 1);
  CHECK(model->spec().tables[0].toString() == "word rows[3] from 0");
  Batch batch;
  batch.reshape(model->inputs(), 2);
  std::ranges::copy(std::vector<int64_t>{7, 9, 7, 7}, batch.values<int64_t>("ids").begin());
  RowBatch rows(model->spec().tables);
  rows.make(featuresOf(batch.rows().lookups = model->lookUp(batch, Purpose::training)));
  bindRows(rows, 0, batch);
  REQUIRE(rows.rowCount(0) == 2);
  const size_t seven = rows.ids(0)[0] == 7 ? 0 : 1;
  std::ranges::fill(rows.rows(0), 0.f);
  std::ranges::fill(rows.rows(0).subspan(3 * seven, 3), 2.f);
  CHECK(model->computeGradients(batch).value() == Approx(0.5 * (6 + 12) / 2));
  CHECK(rows.gradients(0)[3 * seven] == Approx(0.5 * 3 / 2));
  CHECK(rows.gradients(0)[3 * (1 - seven)] == Approx(0.5 / 2));
}

TEST_CASE(
    "gradients that a network computes itself are placed in their tensors, once, and reported in order") {
  auto model =
      makeModel({"own", "own", [] { return std::make_shared<OwnGradients>(); }}, {1, Rank{0}, Device{}, 1})
          .value();
  PSD_REQUIRE_OK(model->reserve(2, true));
  model->rotateGradients();
  std::ranges::fill(model->gradients(), 9.f);
  Batch batch;
  batch.reshape(model->inputs(), 3);
  std::ranges::copy(std::vector<int64_t>{5, 6, 5}, batch.values<int64_t>("ids").begin());
  RowBatch rows(model->spec().tables);
  rows.make(featuresOf(batch.rows().lookups = model->lookUp(batch, Purpose::training)));
  bindRows(rows, 0, batch);
  std::vector<uint64_t> begins;
  uint64_t all = 0;
  const auto loss = model->computeGradients(batch, [&](uint64_t begin, uint64_t count) {
    begins.push_back(begin);
    all += count;
    model->gradients()[begin] += 0.5f;
  });
  CHECK(loss.value() == 3);
  CHECK(begins == std::vector<uint64_t>{0, 16});
  CHECK(all == model->gradients().size());
  std::vector<float> expected(32, 0.f);
  expected[0] = 3.5f, expected[1] = expected[2] = 3, expected[16] = 4.5f;
  CHECK(std::ranges::equal(model->gradients(), expected));
  const size_t five = rows.ids(0)[0] == 5 ? 0 : 1;
  CHECK(rows.gradients(0)[2 * five] == 0 + 2);
  CHECK(rows.gradients(0)[2 * (1 - five)] == 1);
  // It computes with the current one of the alternating arrays.
  std::ranges::fill(model->spareParameters(), 2.f);
  model->swapParameters();
  CHECK(model->computeGradients(batch).value() == 6);
}

TEST_CASE("what a file lacks is reported before training starts") {
  testing::TempDir folder;
  CHECK_THAT(load(folder.file("none.pt")).message(), Contains("none.pt': No such file or directory"));
  testing::writeFile(folder.file("text.pt"), "no archive");
  CHECK_THAT(load(folder.file("text.pt")).message(), Contains("text.pt' is not a TorchScript file"));
  CHECK_THAT(loadError(ScriptModule(kLinear, "")), Contains("holds no psd.json"));
  CHECK_THAT(loadError(ScriptModule(kLinear, "{}")), Contains("psd.json: columns: must be an object"));
  CHECK_THAT(loadError(ScriptModule("def loss(self, x: Tensor) -> Tensor:\n    return x\n")),
             Contains("has no forward"));
  CHECK_THAT(
      loadError(ScriptModule("def forward(self, x: Tensor, n: int) -> Tensor:\n    return x\n")),
      Contains(
          "has forward(Tensor, int) -> Tensor; expected forward(Dict[str, Tensor]) -> Dict[str, Tensor]"));
  {
    ScriptModule written(kLinear);
    written.module.register_parameter("deep", torch::zeros({2}, torch::kFloat64).requires_grad_(true), false);
    CHECK_THAT(loadError(std::move(written)), Contains("has parameter 'deep' of f64[2]; expected f32"));
  }
  {
    ScriptModule written(kLinear);
    written.module.register_parameter("bad", torch::full({1}, NAN).requires_grad_(true), false);
    CHECK_THAT(loadError(std::move(written)), Contains("has parameter 'bad' that holds NaN or infinity"));
  }
  {
    ScriptModule written(kLinear);
    written.module.register_buffer("num_batches_tracked", torch::zeros({}, torch::kInt64));
    CHECK_THAT(loadError(std::move(written)), Contains("keeps running statistics as BatchNorm does"));
  }
  {
    ScriptModule written(kLinear);
    for (const char* name : {"weight", "shift"}) {
      written.module.setattr(name, written.module.attr(name).toTensor().detach());
    }
    CHECK_THAT(loadError(std::move(written)), Contains("has no parameters that are trained"));
  }
}

TEST_CASE("an error in forward is reported in one line") {
  const std::string x = R"({"columns": {"x": "f32[2]"}})";
  CHECK_THAT(trainError(ScriptModule("def forward(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:\n"
                                     "    assert batch[\"x\"].dim() == 7, \"no good\"\n    return batch\n",
                                     x)),
             Contains("forward failed: ") && Contains("no good"));
  CHECK_THAT(trainError(ScriptModule(returning(R"({"loss": batch["z"].mean()})"), x)),
             Contains("KeyError: z"));
  CHECK_THAT(trainError(ScriptModule(returning(R"({"lost": out.mean()})"), x)),
             Contains("forward returned no 'loss'; it returned 'lost'"));
  CHECK_THAT(trainError(ScriptModule(returning(R"({"loss": out})"), x)),
             Contains("forward returned 'loss' as f32[2]; expected a scalar"));
  CHECK_THAT(trainError(ScriptModule(returning(R"({"loss": out.sum().long()})"), x)),
             Contains("forward returned 'loss' as i64[]; expected f32"));
  CHECK_THAT(trainError(ScriptModule(returning(R"({"loss": (out - 100).sum().log()})"), x)),
             Contains("forward returned 'loss' as NaN; is the data finite"));
  CHECK_THAT(trainError(ScriptModule(returning(R"({"loss": batch["x"].mean()})"), x)),
             Contains("a 'loss' that does not depend on any parameter"));
}

TEST_CASE("what is not a parameter may be read, but not changed") {
  const std::string x = R"({"columns": {"x": "f32[2]"}})";
  ScriptModule reader(returning(R"({"loss": out.mean() + self.mask})"), x);
  reader.module.register_buffer("mask", torch::full({}, 3.f));
  const auto model = make(reader.save());
  CHECK(model->computeGradients(batchOf({1, 1}, {0})).value() == Approx(6.5));

  ScriptModule writer(
      "def forward(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:\n"
      "    if self.training:\n        self.mask += 1\n"
      "    return {\"loss\": (batch[\"x\"] * self.weight).mean() + self.mask}\n",
      x);
  writer.module.register_buffer("mask", torch::zeros({}));
  CHECK_THAT(trainError(std::move(writer)), Contains("forward changed 'mask', which is no parameter"));

  ScriptModule counter(
      "def forward(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:\n"
      "    self.steps = self.steps + 1\n"
      "    return {\"loss\": (batch[\"x\"] * self.weight).mean()}\n",
      x);
  counter.module.register_attribute("steps", c10::IntType::get(), 0);
  CHECK_THAT(trainError(std::move(counter)), Contains("forward changed 'steps', which is no parameter"));
}

TEST_CASE("nor may what is in a list, a dict or a tuple be changed") {
  const std::string x = R"({"columns": {"x": "f32[2]"}})";
  const auto changing = [](const std::string& line) {
    return "def forward(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:\n    " + line +
           "\n    return {\"loss\": (batch[\"x\"] * self.weight).mean()}\n";
  };
  c10::List<torch::Tensor> tensors({torch::ones(1)});
  ScriptModule list(changing("self.kept[0].add_(1)"), x);
  list.module.register_attribute("kept", c10::ListType::ofTensors(), tensors);
  CHECK_THAT(trainError(std::move(list)), Contains("forward changed 'kept', which is no parameter"));
  ScriptModule longer(changing("self.kept.append(1)"), x);
  longer.module.register_attribute("kept", c10::ListType::ofInts(), c10::List<int64_t>({1, 2}));
  CHECK_THAT(trainError(std::move(longer)), Contains("forward changed 'kept', which is no parameter"));
  c10::Dict<std::string, torch::Tensor> dict;
  dict.insert("a", torch::zeros(1));
  ScriptModule inDict(changing("self.kept[\"a\"] = self.kept[\"a\"] + 1"), x);
  inDict.module.register_attribute(
      "kept", c10::DictType::create(c10::StringType::get(), c10::TensorType::get()), dict);
  CHECK_THAT(trainError(std::move(inDict)), Contains("forward changed 'kept', which is no parameter"));
  ScriptModule reads(changing("unused = self.kept[0] + 1"), x);
  reads.module.register_attribute("kept", c10::ListType::ofTensors(), tensors);
  CHECK(make(reads.save())->computeGradients(batchOf({1, 1}, {0})).ok());
}

TEST_CASE("metrics are the declared ones, as sums") {
  const auto scoreWith = [](const std::string& dict) {
    ScriptModule written(returning(dict),
                         R"({"columns": {"x": "f32[2]"}, "metrics": {"m": "mean", "a": "auc"}})");
    return make(written.save())->score(batchOf({1, 1, 2, 0}, {3, -1})).message();
  };
  CHECK_THAT(scoreWith(R"({"loss": out.mean(), "n": out})"),
             Contains("forward returned 'n', which is none of the metrics"));
  CHECK_THAT(scoreWith(R"({"loss": out.mean(), "m": out})"),
             Contains("forward returned no 'a'; it returned 'loss', 'm'"));
  CHECK_THAT(scoreWith(R"({"loss": out.mean(), "m": out.mean(), "a": out})"),
             Contains("'m' as f32[]; expected [2], sum and weight"));
  CHECK_THAT(scoreWith(R"({"loss": out.mean(), "m": out, "a": out})"),
             Contains("'a' as f32[2]; expected [n,2], a score and a label"));
  CHECK_THAT(scoreWith(R"({"loss": out.mean(), "loss.weight": out, "m": out, "a": out})"),
             Contains("'loss.weight' as f32[2]; expected a scalar"));
  const std::string pair = "torch.stack([out, out.sign().clamp(0, 1)], 1)";
  CHECK_THAT(scoreWith(R"({"loss": out.mean(), "loss.weight": out.sum() * 0, "m": out, "a": )" + pair + "}"),
             Contains("'loss.weight' as 0.000000; expected a number above 0"));
  CHECK_THAT(scoreWith(R"({"loss": out.mean(), "m": out / 0, "a": )" + pair + "}"),
             Contains("expected a finite sum and a weight that is not negative"));
  CHECK_THAT(scoreWith(R"({"loss": out.mean(), "m": out, "a": torch.stack([out, out * 0 + 0.4], 1)})"),
             Contains("expected a finite score, and 0 or 1"));
  CHECK_THAT(scoreWith(R"({"loss": out.mean(), "m": out, "a": torch.stack([out, out], 1)[:1]})"),
             Contains("'a' as f32[1,2]; expected [n,2], a score and a label"));
}

TEST_CASE("A pass of outputs that changes a buffer fails, and none after it") {
  ScriptModule written(std::string(kLinear) + R"(
def outputs(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:
    if bool((batch["x"] < 0).any()):
        self.seen.add_(1)
    return {"guess": torch.mv(batch["x"], self.weight) + self.shift}
)");
  written.module.register_buffer("seen", torch::zeros({}));
  const auto choice = chooseModel(written.save());
  PSD_REQUIRE_OK(choice);
  const auto model = makeExecutionModel(*choice, 1);
  PSD_REQUIRE_OK(model);
  const auto forward = [&](float x) {
    const Batch batch = batchOf({x, 1}, {0});
    return (*model)->forward((*model)->initialValues(), tensorsOf(batch, (*model)->inputs()), true);
  };
  PSD_REQUIRE_OK(forward(1));
  for (int times = 0; times < 2; times++) {
    const auto changed = forward(-1);
    REQUIRE_FALSE(changed.ok());
    CHECK(changed.message().find("changed 'seen'") != std::string::npos);
    PSD_REQUIRE_OK(forward(1));
  }
}

std::string outputsWith(const std::string& body) {
  return std::string(kLinear) + R"(
def outputs(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:
    guess = torch.mv(batch["x"], self.weight) + self.shift
)" + body +
         "    return {\"guess\": guess}\n";
}

/// An execution model of the module in `written`, whose outputs also run this code.
Result<std::unique_ptr<ExecutionModel>> executing(ScriptModule& written) {
  const auto choice = chooseModel(written.save());
  PSD_REQUIRE_OK(choice);
  return makeExecutionModel(*choice, 1);
}

TEST_CASE("Outputs that write to a parameter are rejected, under any name") {
  const std::string writes = GENERATE(
      as<std::string>(), "    self.weight.mul_(0.5)\n", "    self.weight += 1\n",
      "    self.weight.detach()[0:1].zero_()\n",
      "    if not self.training:\n        self.weight.data.clamp_(-1, 1)\n",
      "    if self.training:\n        self.weight.data.clamp_(-1, 1)\n",
      "    for i in range(2):\n        guess = guess + 1\n        both = [guess, self.weight.view(-1)]\n"
      "        both[i].add_(1)\n",
      "    kept: List[Tensor] = []\n    kept.append(self.weight)\n    kept[0].relu_().add_(1)\n",
      "    named: Dict[str, Tensor] = {}\n    named[\"w\"] = self.weight\n    named[\"w\"].neg_()\n",
      "    torch.add(self.weight, 1, out=self.weight)\n",
      // No number changes, as none is large.
      "    torch.embedding_renorm_(self.weight.unsqueeze(1).detach(), torch.tensor([0]), 9.0, 2.0)\n",
      "    w = self.weight\n    if guess.size(0) > 100:\n        w = guess\n    w.copy_(w + 1)\n",
      "    pair = (self.weight, self.shift)\n    pair[0].detach().fill_(3)\n",
      "    p = self.weight.detach()\n    torch.batch_norm(batch[\"x\"], None, None, p, p.exp(), True, 0.5, "
      "1e-5, False)\n",
      "    p = self.weight.detach()\n    torch.instance_norm(batch[\"x\"].unsqueeze(2).expand(-1, -1, 3), "
      "None, None, "
      "p, p.exp(), True, 0.5, 1e-5, False)\n",
      "    self.weight.detach().reshape(2).contiguous().fill_(3)\n",
      "    torch.split(self.weight.detach(), 1)[0].fill_(3)\n",
      "    self.weight.detach().unbind()[0].fill_(3)\n");
  CAPTURE(writes);
  ScriptModule written(outputsWith(writes));
  const Status refused = executing(written).status();
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::invalidArgument);
  CHECK_THAT(refused.message(), Contains("line.pt': outputs wrote to parameter 'weight'"));
  CHECK(refused.message().find('\n') == std::string::npos);
}

/// Memory that ends the process when it is written to, like a daemon's.
Weights readOnly(const Weights& weights, size_t count) {
  const size_t bytes = count * sizeof(float);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  std::memcpy(memory, weights.get(), bytes);
  REQUIRE(mprotect(memory, bytes, PROT_READ) == 0);
  return {static_cast<const float*>(memory),
          [bytes](const float* values) { munmap(const_cast<float*>(values), bytes); }};
}

TEST_CASE("A pass that writes to a parameter for its inputs fails, and changes nothing for others") {
  const std::string writes = GENERATE(as<std::string>(), "        self.weight.detach().mul_(2)\n",
                                      "        self.weight.data.add_(1)\n",
                                      "        p = self.weight.detach()\n        "
                                      "torch.batch_norm(batch[\"x\"], None, None, p, p.exp(), True, 0.5, "
                                      "1e-5, False)\n",
                                      "        self.weight.detach().unbind()[0].fill_(3)\n");
  CAPTURE(writes);
  ScriptModule written(outputsWith("    if bool((batch[\"x\"] < 0).any()):\n" + writes));
  const auto model = executing(written);
  PSD_REQUIRE_OK(model);
  const Weights weights = readOnly((*model)->initialValues(), 32);
  const auto forward = [&](float x, bool training) {
    const Batch batch = batchOf({x, 1, x, 2}, {0, 0});
    return (*model)->forward(weights, tensorsOf(batch, (*model)->inputs()), training);
  };
  for (const bool training : {true, false, true}) {
    const auto wrote = forward(-1, training);
    REQUIRE_FALSE(wrote.ok());
    CHECK_THAT(wrote.message(),
               Contains("outputs wrote to parameter 'weight'") && Contains("only steps at the daemon"));
    CHECK(wrote.message().find('\n') == std::string::npos);
    CHECK(weights.get()[0] == 1);
    const auto read = forward(1, training);
    PSD_REQUIRE_OK(read);
    CHECK((*read)->outputs()[0].values<float>()[0] == 3.5f);
  }
}

TEST_CASE("An operation that takes a parameter as writable, and only reads it, is not rejected as a write") {
  ScriptModule written(std::string(kLinear) + R"(
def outputs(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:
    guess = torch.mv(batch["x"], self.weight) + self.shift
    hidden = torch.zeros(1, 2, 2)
    out = torch.lstm(batch["x"].unsqueeze(0), [hidden, hidden], [self.inner, self.outer], False, 1, 0.0, self.training, False, False)
    return {"guess": guess, "out": out[0][0]}
)");
  for (const char* name : {"inner", "outer"}) {
    written.module.register_parameter(name, torch::full({8, 2}, 0.25f).requires_grad_(true), false);
  }
  const auto model = executing(written);
  PSD_REQUIRE_OK(model);
  const Weights weights = readOnly((*model)->initialValues(), (*model)->spec().parameterCount() + 64);
  for (const bool training : {true, false}) {
    const auto pass =
        (*model)->forward(weights, tensorsOf(batchOf({1, 1, 2, 0}, {0, 0}), (*model)->inputs()), training);
    PSD_REQUIRE_OK(pass);
    if (!training) continue;
    std::vector<float> gradient(64);
    NamedTensor ones{"out", ElementType::f32, {2, 2}, std::vector<std::byte>(16)};
    std::ranges::fill(ones.values<float>(), 1.f);
    PSD_REQUIRE_OK((*pass)->backward({ones}, gradient));
    CHECK(gradient[32] != 0);
  }
}

TEST_CASE("A module that writes to a parameter while it is trained or scored gets an error that says so") {
  const std::string write =
      "    torch.embedding_renorm_(self.weight.unsqueeze(1).detach(), torch.tensor([0]), 0.5, 2.0)\n";
  const std::string text = std::string(kLinear).insert(std::string(kLinear).find("    guess"), write);
  CHECK_THAT(trainError(ScriptModule(text)), Contains("forward wrote to parameter 'weight'"));
  ScriptModule written(text);
  const auto scored = make(written.save())->score(batchOf({1, 1}, {3}));
  REQUIRE_FALSE(scored.ok());
  CHECK_THAT(scored.message(), Contains("forward wrote to parameter 'weight'"));
}

TEST_CASE("Outputs that write to their own tensors are not rejected as writes to parameters") {
  ScriptModule written(std::string(kLinear) + R"(
def outputs(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:
    guess = torch.mv(batch["x"], self.weight) + self.shift
    guess += self.shift
    copy = self.weight.clone()
    copy.mul_(2)
    joined = torch.cat([self.weight, self.shift])
    joined.zero_()
    kept = [self.weight]
    kept.append(guess)
    batch["x"].mul_(2)
    guess.copy_(torch.relu_(guess + copy.sum()))
    none: Optional[float] = None
    if none is not None:
        self.weight.mul_(none)
    return {"guess": guess + kept[0].sum()}
)");
  const auto choice = chooseModel(written.save());
  PSD_REQUIRE_OK(choice);
  PSD_REQUIRE_OK(makeExecutionModel(*choice, 1));
}

}  // namespace psd::script_network_test
