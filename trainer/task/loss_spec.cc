#include "trainer/task/loss_spec.h"

#include <fmt/format.h>

#include "common/text/text.h"

namespace psd {
namespace {

/// The type and shape of a loss's target, without a name.
ColumnSpec targetOf(LossKind kind) {
  switch (kind) {
    case LossKind::crossEntropy: return {"", ElementType::i64, {}, 0};
    case LossKind::squaredError: return {"", ElementType::f32, {}, 0};
    case LossKind::hinge:
    case LossKind::binaryCrossEntropy: return {"", ElementType::i64, {}, 2};
    case LossKind::nextToken: return {"", ElementType::i64, {ColumnSpec::kAny}, 0};
  }
  return {};
}

}  // namespace

std::string LossSpec::toString() const {
  return fmt::format("{} of {} and {}", kLossKinds[static_cast<size_t>(kind)],
                     output.empty() ? "the output" : "'" + printable(output, 60) + "'", target.toString());
}

Status checkLoss(const LossSpec& loss) {
  ColumnSpec expected = targetOf(loss.kind);
  expected.name = loss.target.name;
  if (!expected.takes(loss.target)) {
    return {ErrorCode::invalidArgument,
            fmt::format("{} has as its target {}; expected {}", kLossKinds[static_cast<size_t>(loss.kind)],
                        loss.target.toString(), expected.typeText())};
  }
  if (loss.penalty.empty() || (!loss.output.empty() && loss.output != loss.penalty)) return {};
  return {ErrorCode::invalidArgument,
          fmt::format("the penalty '{}' requires the name of another output, which is compared",
                      printable(loss.penalty, 60))};
}

}  // namespace psd
