// The manifest of a compiled training step.
#include "trainer/task/step_manifest.h"

#include "test/support/catch.h"

namespace psd::step_manifest_test {
namespace {

using Catch::Matchers::Contains;

constexpr const char* kWhole =
    R"({"format": 1, "torch": "2.11.0", "machine": "x86_64", "cpu": ["avx2", "fma"],
  "parameters": {"line.weight": [1, 2], "shift": []}, "outputs": ["loss", "rmse"],
  "crc32": {"extra/psd.json": 4294967295}})";

std::string problemOf(const std::string& json) {
  const auto read = readStepManifest(json, "'m.pt2': psd_step.json");
  REQUIRE_FALSE(read.ok());
  CHECK(read.message().find('\n') == std::string::npos);
  CHECK_THAT(read.message(), Catch::Matchers::StartsWith("'m.pt2': psd_step.json"));
  return read.message();
}

}  // namespace

TEST_CASE("a compiled step's manifest has shapes in order, outputs and checksums") {
  const auto manifest = readStepManifest(kWhole, "m");
  PSD_REQUIRE_OK(manifest);
  CHECK(manifest->torch == "2.11.0");
  REQUIRE(manifest->tensors.size() == 2);
  CHECK(manifest->tensors[0].toString() == "line.weight f32[1,2]");
  CHECK(manifest->tensors[1].elementCount() == 1);
  CHECK(manifest->outputs == std::vector<std::string>{"loss", "rmse"});
  CHECK(manifest->checksums.at("extra/psd.json") == 4294967295);
}

TEST_CASE("an invalid manifest is reported with the place of the error") {
  CHECK_THAT(problemOf("{"), Contains("psd_step.json"));
  CHECK_THAT(problemOf("[]"), Contains("must be an object"));
  CHECK_THAT(problemOf("{}"), Contains("format: is missing; expected 1"));
  CHECK_THAT(problemOf(R"({"format": 2, "more": {}})"), Contains("format 2 is from a later psd; expected 1"));
  CHECK_THAT(problemOf(R"({"format": 1})"), Contains("parameters: must name at least one, with its shape"));
  CHECK_THAT(problemOf(R"({"format": 1, "parameters": {"a": [0]}})"),
             Contains("parameters.a: must be a shape"));
  CHECK_THAT(problemOf(R"({"format": 1, "parameters": {"a": [1099511627777]}})"),
             Contains("parameters.a: must be a shape"));
  CHECK_THAT(problemOf(R"({"format": 1, "parameters": {"a": [-1]}})"), Contains("parameters.a"));
  CHECK_THAT(problemOf(R"({"format": 1, "parameters": {"a": [1]}, "crc32": {"b": 4294967296}})"),
             Contains("crc32.b"));
}

TEST_CASE("code runs only with its LibTorch version and its kind of processor") {
  const StepManifest manifest = readStepManifest(kWhole, "m").value();
  PSD_REQUIRE_OK(manifest.checkRunsOn("2.11.0", {"x86_64", {"fma", "sse2", "avx2"}}));
  CHECK_THAT(manifest.checkRunsOn("2.12.0", {"x86_64", {"avx2", "fma"}}).message(),
             Contains("was compiled for LibTorch 2.11.0, and this program has 2.12.0"));
  CHECK_THAT(manifest.checkRunsOn("2.11.0", {"aarch64", {"avx2", "fma"}}).message(),
             Contains("was compiled for x86_64, and this machine is aarch64"));
  CHECK_THAT(manifest.checkRunsOn("2.11.0", {"x86_64", {"sse2"}}).message(),
             Contains("was compiled for a CPU with avx2, fma, which this one lacks"));
  const Processor here = Processor::here();
  CHECK_FALSE(here.machine.empty());
  CHECK_FALSE(here.features.empty());
}

}  // namespace psd::step_manifest_test
