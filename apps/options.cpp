// The commands' tables of flags and what help says after them.
#include "apps/options.h"

#include "apps/flag_groups.h"
#include "engine/memory_needs.h"

namespace fut::app {
namespace {

constexpr const char* kRunNotes =
    "The prompt is the user's turn in the model's chat template, or with --raw a text to continue. "
    "Without\n-p and -f it is read from standard input; on a terminal, chat begins instead. Files "
    "and standard input are\ntaken byte for byte, but for one final newline, which is dropped in "
    "the chat form and kept with --raw.\n"
    "Standard output is the reply alone, streamed. In the chat form one newline follows it; with "
    "--raw nothing\nfollows, except on a terminal.\n"
    "-o json prints one document, on failure too (it then has an error object); -o jsonl an object "
    "for every\npiece of text and the document as last line. Bytes that are not UTF-8 are U+FFFD "
    "in "
    "JSON; ids has them all.\n";

constexpr const char* kChatNotes =
    "Every line is a turn. A line of \"\"\" begins a turn of several lines and ends it; pasted "
    "text "
    "is one turn\nwhatever it holds. /help lists the commands: system prompt, settings, another "
    "reply, saving and more.\nCtrl-C stops a reply, which is kept; at an empty prompt the second "
    "one "
    "leaves, and so does Ctrl-D.\nWithout a terminal there are no prompts: one reply for each line "
    "that is not blank; the exit code is 4 where\na turn did not fit and that of the first command "
    "that failed.\nThe next turn computes only what the conversation does not have yet; the cached "
    "part is reported.\n"
    "-o jsonl prints an object for each reply, -o json one document with all of them at the end.\n";

constexpr const char* kTokenizeNotes =
    "Prints the ids on one line, separated by blanks. --pieces prints what the split pattern makes "
    "of the text,\na piece a line, with \\n, \\r, \\t, \\\\ and \\xHH for what would break a line; "
    "-o json has the exact strings.\n"
    "Needs a folder with tokenizer files only.\n";

constexpr const char* kBatchSection = "Many prompts";

constexpr const char* kBatchNotes =
    "With -i each line of FILE is an object with a 'prompt', or with 'messages', a list of {role, "
    "content}. Beside\nit may stand an 'id', which comes back, a 'system' text, and what flags say "
    "for all rows: raw, temperature,\ntop_k, top_p, min_p, repetition_penalty, presence_penalty, "
    "frequency_penalty, repeat_last_n, seed, max_tokens,\nstop (a text or a list), ignore_eos, "
    "special, logprobs. The result is a line for each row, in the order of the\nrows: index, id "
    "and "
    "reply, or an 'error'; a bad row stops no other, and the exit code is that of the first one.\n"
    "An --output-file that was begun is gone on with by --resume.\n";

Flags history_flags(HistoryOptions& o) {
  return {{{"--no-history"},
           "",
           kPromptSection,
           "Store nothing of what is typed in a chat",
           turn_off(o.store),
           false,
           {"--history-file"}},
          {{"--history-file"},
           "FILE",
           kPromptSection,
           "Where it is stored [$XDG_STATE_HOME/fut/chat_history, else below ~/.local/state]",
           noting_typed(o.file_typed, set_text(o.file, "file name"))}};
}

Flags batch_flags(BatchOptions& o) {
  Flags flags = {{{"-b", "--batch"},
                  "N",
                  kBatchSection,
                  "Replies that go along together; they do not depend on it [8]",
                  set_integer(o.replies_at_a_time, 1, kMostSequences, "")},
                 {{"--resume"},
                  "",
                  kBatchSection,
                  "Go on after the replies that --output-file holds",
                  turn_on(o.resume),
                  false,
                  {"--overwrite"}},
                 {{"--overwrite", "--force"},
                  "",
                  kBatchSection,
                  "Begin anew where --output-file holds something",
                  turn_on(o.overwrite)}};
  for (Flag& flag : flags) flag.set = noting_typed(o.flag_typed, std::move(flag.set));
  flags.push_back({{"-i", "--input-file"},
                   "FILE",
                   kBatchSection,
                   "Prompts as JSON Lines, a reply for each; '-' is standard input",
                   set_text(o.input_file, "file name"),
                   false,
                   {"--prompt", "--file", "--verbose-prompt"}});
  return flags;
}

}  // namespace

Command program_command(ProgramOptions& o) {
  return {"",
          "fut: Llama 3.1 inference",
          kExitCodes,
          {{{"--version"}, "", "Options", "Print version and build, and leave", turn_on(o.version)},
           {{"--list-devices"},
            "",
            "Options",
            "Print the devices that were looked for, and leave",
            turn_on(o.list_devices)}}};
}

Command run_command(GenerateOptions& o) {
  Command command{"run",
                  "One reply: text in, text out; with -i many",
                  std::string(kRunNotes) + kBatchNotes + kExitCodes,
                  {}};
  command.flags.push_back(model_flag(o.model.model));
  append(command.flags, device_flags(o.model.device));
  command.flags.push_back(context_flag(o.model.context_tokens));
  append(command.flags, arithmetic_flags(o.model.arithmetic));
  append(command.flags, copy_flags(o.model));
  append(command.flags, prompt_flags(o.prompt, "The prompt"));
  command.flags.push_back({{"--truncate"},
                           "head|tail",
                           kPromptSection,
                           "Drop the first (head) or last (tail) tokens of a prompt that is too "
                           "long; BOS and system turn stay",
                           [&o](const Argument& a) {
                             o.reply.truncate = parse_choice(a, {"head", "tail"}) == 0
                                                    ? Truncate::Head
                                                    : Truncate::Tail;
                           }});
  append(command.flags, history_flags(o.history));
  append(command.flags, batch_flags(o.batch));
  append(command.flags, raw_flags(o.form));
  append(command.flags, form_flags(o.form));
  append(command.flags, reply_flags(o.reply));
  append(command.flags, sampling_flags(o.sampling));
  append(command.flags, output_flags(o.output, "Form of the result [text]"));
  append(command.flags, log_flags(o.log));
  return command;
}

Command chat_command(GenerateOptions& o) {
  Command command{"chat", "Talk with a model", std::string(kChatNotes) + kExitCodes, {}};
  command.flags.push_back(model_flag(o.model.model));
  append(command.flags, device_flags(o.model.device));
  command.flags.push_back(context_flag(o.model.context_tokens));
  append(command.flags, arithmetic_flags(o.model.arithmetic));
  append(command.flags, copy_flags(o.model));
  append(command.flags, prompt_flags(o.prompt, "The first turn"));
  command.flags.push_back({{"-st", "--single-turn"},
                           "",
                           kPromptSection,
                           "Leave after one reply",
                           turn_on(o.reply.single_turn)});
  append(command.flags, history_flags(o.history));
  append(command.flags, form_flags(o.form));
  append(command.flags, reply_flags(o.reply));
  append(command.flags, sampling_flags(o.sampling));
  append(command.flags, output_flags(o.output, "Form of the replies [text]"));
  append(command.flags, log_flags(o.log));
  return command;
}

Command tokenize_command(TokenizeOptions& o) {
  Command command{"tokenize", "Text to token ids", std::string(kTokenizeNotes) + kExitCodes, {}};
  command.flags = {model_flag(o.model),
                   {{"-p", "--prompt"},
                    "TEXT",
                    kTextSection,
                    "The text; '-' reads standard input; \\n, \\t and the like are interpreted",
                    set_any_text(o.text.text),
                    false,
                    {"--file", "--input-file", "--messages"}},
                   {{"-f", "--file"},
                    "FILE",
                    kTextSection,
                    "The text from a file, byte for byte; '-' is standard input",
                    set_text(o.text.file, "file name"),
                    false,
                    {"--input-file", "--messages"}},
                   {{"-i", "--input-file"},
                    "FILE",
                    kTextSection,
                    "JSON Lines: the 'text' of every object, a line of ids each",
                    set_text(o.input_file, "file name"),
                    false,
                    {"--messages"}},
                   {{"--messages"},
                    "FILE",
                    kTextSection,
                    "JSON list of {role, content}: a conversation in the chat template",
                    set_text(o.messages_file, "file name")},
                   {{"--no-escape"},
                    "",
                    kTextSection,
                    "Take backslashes in -p as they are",
                    turn_off(o.interpret_escapes)},
                   {{"--no-bos"},
                    "",
                    kTextSection,
                    "No BOS in front",
                    turn_off(o.add_bos),
                    false,
                    {"--messages"}},
                   {{"--no-special"},
                    "",
                    kTextSection,
                    "Control tokens spelt out in the text stay text",
                    turn_off(o.parse_special),
                    false,
                    {"--messages"}},
                   {{"--parse-special"},
                    "",
                    kFormSection,
                    "With --messages: control tokens spelt out in messages become control tokens",
                    noting_typed(o.chat_flag_typed, turn_on(o.parse_message_special))},
                   {{"--pieces"},
                    "",
                    kTextSection,
                    "The pieces before merging, one a line",
                    turn_on(o.pieces),
                    false,
                    {"--messages"}},
                   {{"--render"},
                    "",
                    kFormSection,
                    "With --messages: the text instead of the ids",
                    noting_typed(o.chat_flag_typed, turn_on(o.render))},
                   {{"--no-generation-prompt"},
                    "",
                    kFormSection,
                    "With --messages: without the opening of the assistant's turn",
                    noting_typed(o.chat_flag_typed, turn_off(o.add_generation_prompt))}};
  for (Flag flag : {chat_template_flag(o.chat_template), date_flag(o.date)}) {
    flag.set = noting_typed(o.chat_flag_typed, std::move(flag.set));
    command.flags.push_back(std::move(flag));
  }
  append(command.flags, output_flags(o.output, "Form of the result [text]"));
  append(command.flags, log_flags(o.log));
  return command;
}

Command inspect_command(InspectOptions& o) {
  Command command{"inspect",
                  "What a model folder holds; reads headers and small tensors, no weight matrices",
                  kExitCodes,
                  {model_flag(o.model)}};
  command.flags.push_back(
      {{"--check-tensors"},
       "",
       kModelSection,
       "Read a quantised folder whole and compare it with its checksums; without it those of what "
       "is read are compared",
       turn_on(o.check_tensors)});
  command.flags.push_back({{"--plot"},
                           "FILE.svg",
                           kModelSection,
                           "Draw the error of every matrix of a quantised folder",
                           set_text(o.plot_file, "file name")});
  append(command.flags, output_flags(o.output, "Form of the report [text]"));
  append(command.flags, log_flags(o.log));
  return command;
}

}  // namespace fut::app
