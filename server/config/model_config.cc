#include "server/config/model_config.h"

#include <vector>

namespace psd {
namespace {

constexpr uint64_t kSeedMax = uint64_t{1} << 53;  // exact in JSON numbers

std::vector<TensorSpec> readTensors(ConfigReader& in) {
  std::vector<TensorSpec> tensors;
  for (ConfigReader& entry :
       in.objects({"tensors", "The tensors in order; the initializer sends their values."})) {
    TensorSpec& tensor = tensors.emplace_back();
    entry.text({"name", "Name of the tensor at the trainers; no two are equal."}, tensor.name,
               {{"minLength", 1}});
    entry.integers({"shape", "Sizes, row-major; `[]` is a scalar. At most 2⁴⁰ elements in all."},
                   tensor.shape, {{"items", {{"minimum", 1}}}});
    entry.require("name", "is needed");
    entry.require("shape", "is needed, as [128, 784]; [] is a scalar");
    entry.choice<DType>(
        {"dtype",
         "Type of an element where it travels: float32, bfloat16 or half precision. The daemon "
         "computes with float32."},
        tensor.dtype,
        {{dtypeName(DType::f32), DType::f32},
         {dtypeName(DType::bf16), DType::bf16},
         {dtypeName(DType::f16), DType::f16}});
  }
  return tensors;
}

void readInitial(ConfigReader in, RowInitial& initial) {
  using Kind = RowInitial::Kind;
  initial.kind = Kind::uniform;
  in.choice<Kind>({"type",
                   "Values of a row before the first push that touches it: zeros, uniform from −`scale` to "
                   "`scale`, or normal with standard deviation `scale`."},
                  initial.kind, {{"zero", Kind::zero}, {"uniform", Kind::uniform}, {"normal", Kind::normal}});
  double scale = RowInitial::kScale;
  in.number({"scale", "Bound or standard deviation; see `type`."}, scale, {.min = 0, .max = 1e6});
  initial.scale = static_cast<float>(scale);
  in.integer({"seed", "Tables with different seeds start with unrelated rows."}, initial.seed, 0, kSeedMax);
}

std::vector<TableSpec> readTableSpecs(ConfigReader& in) {
  std::vector<TableSpec> tables;
  for (ConfigReader& entry : in.objects({"tables", "The embedding tables in order."})) {
    TableSpec& table = tables.emplace_back();
    table.dim = 1;
    entry.text({"name", "Name of the table at the trainers; no tensor or other table has it."}, table.name,
               {{"minLength", 1}});
    entry.integer({"dim", "Values of a row; a row must fit into `limits.slice_bytes`."}, table.dim, 1,
                  kTableDimMax);
    entry.require("name", "is needed");
    entry.require("dim", "is needed: the values of a row");
    readInitial(entry.object({"initial",
                              "Values of a row before the first push that touches it, a function of the seed "
                              "and the row's id."}),
                table.initial);
  }
  return tables;
}

}  // namespace

ModelConfig readModel(ConfigReader in) {
  ModelConfig model;
  const bool hasNames = in.has("tensors") || in.has("tables"), hasFile = in.has("file");
  if (hasNames == hasFile) {
    in.fail("", hasFile ? "holds 'tensors' or 'tables', and 'file'; give only one of the two"
                        : "needs 'tensors', 'tables' or 'file'");
  }
  in.rule({{"anyOf",
            {{{"required", {"file"}}},
             {{"required", {"tensors"}}, {"properties", {{"tensors", {{"minItems", 1}}}}}},
             {{"required", {"tables"}}, {"properties", {{"tables", {{"minItems", 1}}}}}}}},
           {"dependentSchemas", {{"file", {{"properties", {{"tensors", false}, {"tables", false}}}}}}}});
  model.spec.name = "model";
  in.text({"name", "Name of the model in logs and the status."}, model.spec.name);
  if (in.describes() || hasNames) {
    model.spec.tensors = readTensors(in);
    model.spec.tables = readTableSpecs(in);
    Status valid = in.describes() ? Status() : validateModel(model.spec);
    if (!valid.ok()) in.fail("tensors", valid.message());
  }
  if (in.describes() || hasFile) {
    in.path({"file",
             "Path of a .safetensors file whose F32 tensors are the model and its initial values. Other "
             "tensors, such as integer buffers, are skipped with a warning.",
             Key::kNoDefault},
            model.file, {{"minLength", 1}});
    if (model.file.empty()) in.fail("file", "must be the path of a .safetensors file, not \"\"");
  }
  return model;
}

}  // namespace psd
