#include <memory>

#include "trainer/cli/commands.h"
#include "trainer/cli/setup.h"
#include "trainer/eval/evaluate.h"
#include "trainer/loop/batches.h"

namespace psd {

Status runEval(const EvalCommand& command, const Connect& connect, std::ostream& out) {
  PSD_ASSIGN_OR_RETURN(const auto test, openData(command.common, Split::test));
  PSD_ASSIGN_OR_RETURN(const auto model, buildModel(command.common));
  PSD_RETURN_IF_ERROR(checkFit(*model, *test));
  PSD_ASSIGN_OR_RETURN(const auto client, connect(command.common.client));
  PSD_ASSIGN_OR_RETURN(const EvalReport report, evaluateServer(*client, *model, *test));
  out << (command.json ? formatJson(report) : formatScore(report.score, report.data)) << std::endl;
  return {};
}

}  // namespace psd
