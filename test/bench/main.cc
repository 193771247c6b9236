// psd-bench-references: this machine's performance without psd, as a reference for psd's figures. Each
// subcommand prints one JSON object.

#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "test/bench/bench_program.h"
#include "test/bench/references.h"

namespace psd::bench {
namespace {

using Json = nlohmann::ordered_json;

const std::map<std::string, StreamKind> kKinds = {{"unix", StreamKind::unixSocket}, {"tcp", StreamKind::tcp}};
const std::map<std::string, Direction> kDirections = {{"pull", Direction::pull}, {"push", Direction::push}};
const std::map<std::string, MemoryOperation> kMemory = {
    {"copy", MemoryOperation::copy},         {"copy_streaming", MemoryOperation::copyStreaming},
    {"triad", MemoryOperation::triad},       {"sgd", MemoryOperation::sgd},
    {"momentum", MemoryOperation::momentum}, {"adagrad", MemoryOperation::adagrad},
    {"adam", MemoryOperation::adam},         {"lion", MemoryOperation::lion},
    {"ftrl", MemoryOperation::ftrl},         {"ftrl_racing", MemoryOperation::ftrlRacing}};

const std::map<std::string, CombineOperation> kCombine = {{"mean", CombineOperation::mean},
                                                          {"median", CombineOperation::median},
                                                          {"trimmed_mean", CombineOperation::trimmedMean},
                                                          {"distances", CombineOperation::distances}};

/// The parsed command line.
struct Arguments {
  StreamKind kind = StreamKind::unixSocket;
  Direction direction = Direction::pull;
  MemoryOperation operation = MemoryOperation::copy;
  CombineOperation combine = CombineOperation::mean;
  uint32_t gradients = 5;
  uint64_t bytes = 64u << 20;
  uint64_t pieceBytes = 0;  // 0: in one piece
  uint32_t window = 4;
  int bufferBytes = 0;
  double seconds = 1;
  std::string rowTransport = "unix";
  RowWireOptions rows;
};

void print(const Timing& timing, uint64_t bytesPerIteration) {
  const auto bytes = static_cast<double>(bytesPerIteration);
  const Json out = {{"iterations", timing.iterations},
                    {"median_s", timing.median},
                    {"best_s", timing.best},
                    {"bytes_per_s", bytes / timing.median}};
  std::printf("%s\n", out.dump().c_str());
}

void runStream(const Arguments& arguments) {
  const uint64_t piece = arguments.pieceBytes == 0 ? arguments.bytes : arguments.pieceBytes;
  print(measureStream({arguments.kind, arguments.direction, arguments.bytes, piece, arguments.window,
                       arguments.bufferBytes},
                      arguments.seconds),
        arguments.bytes);
}

void runMemory(const Arguments& arguments) {
  const MemoryTiming measured = measureMemory(arguments.operation, arguments.bytes, arguments.seconds);
  print(measured.timing, measured.bytesMoved);
}

void runCombine(const Arguments& arguments) {
  const MemoryTiming measured =
      measureCombine(arguments.combine, arguments.gradients, arguments.bytes, arguments.seconds);
  print(measured.timing, measured.bytesMoved);
}

void runRows(const Arguments& arguments) {
  RowWireOptions options = arguments.rows;
  options.ring = arguments.rowTransport == "ring";
  options.kind = arguments.rowTransport == "tcp" ? StreamKind::tcp : StreamKind::unixSocket;
  const RowWireTiming measured = measureRowWire(options, arguments.seconds);
  const Json out = {{"iterations", measured.timing.iterations},
                    {"median_s", measured.timing.median},
                    {"best_s", measured.timing.best},
                    {"rows_per_s", measured.rowsPerSecond}};
  std::printf("%s\n", out.dump().c_str());
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Measures what this machine can do without psd.", "psd-bench-references");
  app.require_subcommand(1);
  const auto add = [&](const char* name, const char* help, std::function<void(const Arguments&)> work) {
    CLI::App* command = app.add_subcommand(name, help);
    command->add_option("--seconds", arguments.seconds, "how long to measure")->check(CLI::Range(0., 3600.));
    command->final_callback([&arguments, work = std::move(work)] { work(arguments); });
    return command;
  };
  const CLI::Range positive(uint64_t{4}, uint64_t{1} << 40);
  const auto addKind = [&](CLI::App* command) {
    command->add_option("--transport", arguments.kind, "unix or tcp")->transform(CLI::Transformer(kKinds));
  };
  const auto addSize = [&](CLI::App* command) {
    command->add_option("--size", arguments.bytes, "bytes, a multiple of 4")
        ->check(positive)
        ->check(CLI::Validator(
            [](std::string& text) { return std::stoull(text) % 4 ? "not a multiple of 4" : ""; },
            "MULTIPLE OF 4"));
  };
  CLI::App* stream = add("stream", "a plain stream between two processes", runStream);
  addKind(stream);
  addSize(stream);
  stream->add_option("--direction", arguments.direction, "pull or push (applied by SGD)")
      ->transform(CLI::Transformer(kDirections));
  stream->add_option("--piece", arguments.pieceBytes, "bytes of one request, a multiple of 4; 0: all");
  stream->add_option("--window", arguments.window, "requests unanswered at a time")
      ->check(CLI::Range(1, 1024));
  stream->add_option("--buffer", arguments.bufferBytes, "bytes of the sockets' buffers; 0: the system's")
      ->check(CLI::Range(0, 1 << 30));
  CLI::App* rows = add("rows", "rows of an embedding table between two processes", runRows);
  rows->add_option("--transport", arguments.rowTransport, "unix, tcp or ring")
      ->check(CLI::IsMember({"unix", "tcp", "ring"}));
  rows->add_option("--direction", arguments.rows.direction, "pull or push (applied by SGD)")
      ->transform(CLI::Transformer(kDirections));
  const CLI::Range counts(1, 1 << 30);
  rows->add_option("--rows", arguments.rows.rows, "of the table")->check(counts);
  rows->add_option("--ids", arguments.rows.ids, "of one transfer")->check(counts);
  rows->add_option("--dim", arguments.rows.dim, "floats of a row")->check(CLI::Range(1, 4096));
  rows->add_option("--skew", arguments.rows.skew, "exponent of Zipf's law; 0: all ids alike")
      ->check(CLI::Range(0., 10.));
  addKind(add("pingpong", "eight bytes there and back",
              [](const Arguments& a) { print(measurePingPong(a.kind, a.seconds), 8); }));
  CLI::App* memory = add("memory", "a loop of one thread over arrays of --size", runMemory);
  addSize(memory);
  memory
      ->add_option("--operation", arguments.operation,
                   "copy | copy_streaming | triad | sgd | momentum | adagrad | adam")
      ->transform(CLI::Transformer(kMemory));
  CLI::App* combine = add("combine", "several gradients of --size become one", runCombine);
  addSize(combine);
  combine->add_option("--operation", arguments.combine, "mean | median | trimmed_mean | distances")
      ->transform(CLI::Transformer(kCombine));
  combine->add_option("--gradients", arguments.gradients, "how many")->check(CLI::Range(3, 1000));
  CLI::App* call = add("call", "an empty call of Cap'n Proto as it comes",
                       [](const Arguments& a) { print(measureCapnp(a.kind, 0, a.seconds), 0); });
  addKind(call);
  CLI::App* message =
      add("message", "one answer of --size, of Cap'n Proto as it comes",
          [](const Arguments& a) { print(measureCapnp(a.kind, a.bytes, a.seconds), a.bytes); });
  addKind(message);
  addSize(message);
  CLI11_PARSE(app, argc, argv);
  return 0;
}

}  // namespace
}  // namespace psd::bench

int main(int argc, char** argv) {
  return psd::bench::runProgram("psd-bench-references", psd::bench::run, argc, argv);
}
