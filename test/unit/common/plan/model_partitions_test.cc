#include "common/plan/model_partitions.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>

#include "common/plan/fragment_plan.h"
#include "common/types/row_hash.h"
#include "test/support/catch.h"

namespace psd::model_partitions_test {

ModelSpec modelOf(std::vector<std::vector<uint64_t>> shapes) {
  ModelSpec model{"m", {}};
  for (const auto& shape : shapes) {
    model.tensors.push_back({"t" + std::to_string(model.tensors.size()), DType::f32, shape});
  }
  return model;
}

std::vector<ModelSpec> specsOf(const std::vector<ModelPartition>& partitions) {
  std::vector<ModelSpec> specs;
  for (const ModelPartition& partition : partitions) specs.push_back(partition.spec);
  return specs;
}

TEST_CASE("partitions are contiguous, each is the layout of its own model, and together they are the whole") {
  const std::vector<ModelSpec> models = {modelOf({{784, 256}, {256}, {256, 10}, {10}}),
                                         modelOf({{1000}}),
                                         modelOf({{3}, {5}, {}, {7, 7}, {100}}),
                                         modelOf({{2, 4096}, {1, 5000}}),
                                         modelOf({{301, 7}, {}}),
                                         modelOf({{17, 3}, {64, 33}, {10, 64}})};
  for (const ModelSpec& model : models) {
    for (uint32_t daemons = 1; daemons <= 5; daemons++) {
      const auto partitions = partitionModel(model, daemons);
      if (!partitions.ok()) {
        CHECK(partitions.message().find("cannot be cut for") != std::string::npos);
        continue;
      }
      REQUIRE(partitions->size() == daemons);
      uint64_t next = 0;
      for (uint32_t i = 0; i < daemons; i++) {
        const ModelPartition& partition = (*partitions)[i];
        CHECK(partition.begin == next);
        CHECK(partition.begin % kLayoutGrainElements == 0);
        CHECK(ModelLayout(partition.spec).totalElements() == partition.count);
        CHECK(partition.spec.partition == Partition{i, daemons});
        CHECK(partition.count > 0);
        CHECK(validateModel(partition.spec).ok());
        next += partition.count;
      }
      CHECK(next == ModelLayout(model).totalElements());
      const auto whole = joinPartitions(specsOf(*partitions));
      REQUIRE(whole.ok());
      CHECK(whole->signature() == model.signature());
    }
  }
}

TEST_CASE("partitions have similar sizes, and cuts fall between tensors where that is close enough") {
  const auto cut = partitionModel(modelOf({{784, 256}, {256}, {256, 10}, {10}}), 2);
  REQUIRE(cut.ok());
  const uint64_t total = (*cut)[0].count + (*cut)[1].count;
  CHECK((*cut)[0].count > total * 48 / 100);
  CHECK((*cut)[0].count < total * 52 / 100);
  CHECK((*cut)[0].spec.tensors.back().toString() == "t0[0:398] f32[398,256]");
  CHECK((*cut)[1].spec.tensors.front().toString() == "t0[398:784] f32[386,256]");
  const auto between = partitionModel(modelOf({{100, 16}, {98, 16}}), 2);
  REQUIRE(between.ok());
  CHECK((*between)[0].spec.tensors == modelOf({{100, 16}}).tensors);
}

TEST_CASE("tensors that are not cut are distributed whole, at least one per daemon") {
  const auto cut = partitionModel(modelOf({{3, 701}, {7}}), 2);
  REQUIRE(cut.ok());
  CHECK((*cut)[0].spec.tensors == modelOf({{3, 701}}).tensors);
  const auto first = partitionModel(modelOf({{7}, {3, 701}, {5}}), 3);
  REQUIRE(first.ok());
  for (const ModelPartition& partition : *first) CHECK(partition.spec.tensors.size() == 1);
  const auto rows = partitionModel(modelOf({{4, 1000}, {2}, {2}}), 4);  // 4 rows can be cut in two
  REQUIRE(rows.ok());
  CHECK((*rows)[0].spec.tensors.front().name == "t0[0:2]");
  CHECK_FALSE(partitionModel(modelOf({{4, 1000}, {2}, {2}}), 5).ok());
}

TEST_CASE("a partition without tensors requires a model with tables") {
  ModelSpec model = modelOf({{16}});
  const auto small = partitionModel(model, 2);
  REQUIRE_FALSE(small.ok());
  CHECK(small.message() ==
        "model 'm', 16 parameters in 1 tensors, cannot be cut for 2 daemons: partition 1 would be empty");
  model.tables = {{"rows", 4, {}}};
  const auto tables = partitionModel(model, 2);
  REQUIRE(tables.ok());
  CHECK((*tables)[0].spec.tables == model.tables);
  CHECK((*tables)[1].spec.tables == model.tables);
  CHECK((*tables)[0].count + (*tables)[1].count == 16);
}

TEST_CASE("table rows are spread over all daemons, and over all row shards of each") {
  constexpr uint32_t kDaemons = 3;
  std::vector<std::vector<uint64_t>> rows(kDaemons, std::vector<uint64_t>(2));
  for (uint64_t id = 0; id < 60'000; id++) {
    const uint64_t hash = rowHash(id);
    rows[partitionOf(hash, kDaemons)][hash >> 63]++;
  }
  for (const auto& ofDaemon : rows) {
    for (const uint64_t count : ofDaemon) CHECK((count > 9'500 && count < 10'500));
  }
  CHECK(partitionOf(rowHash(7), 1) == 0);
}

TEST_CASE("a tensor with the name of a part is rejected if there are several daemons") {
  ModelSpec model = modelOf({{100, 16}, {100, 16}});
  model.tensors[1].name = "w[0:3]";
  CHECK(partitionModel(model, 2).message().find("tensor 'w[0:3]' has a name reserved for parts of tensors") ==
        0);
  CHECK(partitionModel(model, 1).ok());
}

TEST_CASE("the name of a part is parsed into tensor and range") {
  CHECK(wholeName("fc1.weight[0:128]") == "fc1.weight");
  for (const char* name : {"fc1.weight", "w[1]", "w[:]", "w[3:2]", "w[a:2]", "w[0:2]x", "[", "w]0:2["}) {
    CHECK(wholeName(name) == name);
  }
}

TEST_CASE("partitions of different models, or out of order, are not joined") {
  const auto partitions = partitionModel(modelOf({{100, 16}, {30, 16}}), 3);
  REQUIRE(partitions.ok());
  std::vector<ModelSpec> specs = specsOf(*partitions);
  std::swap(specs[0], specs[1]);
  CHECK(joinPartitions(specs).message() == "expected partition 0 of 3 of 'm', got partition 1 of 3");
  specs = specsOf(*partitions);
  specs.pop_back();
  CHECK(joinPartitions(specs).message() == "expected partition 0 of 2 of 'm', got partition 0 of 3");
  specs = specsOf(*partitions);
  specs[1].tensors.front().name = "t0[1:2]";
  CHECK(joinPartitions(specs).message().find("does not have the rows that its name states") !=
        std::string::npos);
  specs[1].tensors.front().shape.front() = 1;
  CHECK(joinPartitions(specs).message().find("does not continue where the previous partition ends") !=
        std::string::npos);
  specs = specsOf(*partitions);
  specs[2].tables = {{"rows", 4, {}}};
  CHECK(joinPartitions(specs).message() ==
        "partition 2 of 'm' has different tables than the previous partitions");
}

TEST_CASE("a tensor and its parts belong to the fragment that the tensor has in the whole model") {
  ModelSpec model = modelOf({{100, 16}, {30, 16}, {7}, {50, 8}, {64}});
  for (const uint32_t fragments : {2u, 3u, 5u}) {
    const std::vector<uint32_t> plan = planFragments(model, fragments);
    CHECK(*fragmentsOf(model, fragments) == plan);
    for (const uint32_t daemons : {2u, 3u, 4u}) {
      const auto partitions = partitionModel(model, daemons);
      PSD_REQUIRE_OK(partitions);
      std::set<uint32_t> seen;
      for (const ModelPartition& partition : *partitions) {
        const auto found = fragmentsOf(partition.spec, fragments);
        PSD_REQUIRE_OK(found);
        REQUIRE(found->size() == partition.spec.tensors.size());
        for (size_t i = 0; i < found->size(); i++) {
          const auto whole =
              std::ranges::find(model.tensors, wholeName(partition.spec.tensors[i].name), &TensorSpec::name);
          CHECK((*found)[i] == plan[static_cast<size_t>(whole - model.tensors.begin())]);
          seen.insert((*found)[i]);
        }
      }
      CHECK(seen.size() == fragments);
    }
  }
}

TEST_CASE("a partition that names no whole model, or another one, has no fragments") {
  const ModelSpec model = modelOf({{100, 16}, {30, 16}});
  const auto partitions = partitionModel(model, 2),
             others = partitionModel(modelOf({{120, 16}, {30, 16}}), 2);
  PSD_REQUIRE_OK(partitions);
  PSD_REQUIRE_OK(others);
  ModelSpec one = partitions->back().spec;
  one.whole = nullptr;
  CHECK(fragmentsOf(one, 2).message() ==
        "partition 1 of 2 of 'm' lacks the tensors of the whole model, from which its fragments are "
        "computed: it comes from an older version");
  one.whole = others->back().spec.whole;
  CHECK(fragmentsOf(one, 2).message() ==
        "the tensors of partition 1 of 2 do not match those of the whole model 'm'");
  one.whole =
      std::make_shared<const std::vector<TensorSpec>>(std::vector<TensorSpec>{{"t", DType::f32, {1}}});
  CHECK(fragmentsOf(one, 2).message().find("cannot be cut for 2 daemons") != std::string::npos);
}

}  // namespace psd::model_partitions_test
