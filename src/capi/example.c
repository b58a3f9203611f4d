/* Completes a prompt and prints the text as it comes.
 *
 *   cc example.c -o example $(pkg-config --cflags --libs tandem)
 *   ./example model.gguf "Once upon a time" */
#include <stdio.h>
#include <tandem.h>

static int print_piece(const tandem_piece* piece, void* file) {
  fwrite(piece->text, 1, piece->n_bytes, file);
  return fflush(file); /* nonzero stops: nobody reads the text */
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s MODEL PROMPT\n", argv[0]);
    return TANDEM_ERROR_USAGE;
  }
  tandem_options* options = tandem_options_new();
  tandem_model* model = NULL;
  tandem_session* session = NULL;
  tandem_options_set_int(options, "n_predict", 100);
  tandem_options_set_real(options, "temp", 0.7);

  tandem_status status = tandem_model_load(argv[1], options, &model);
  if (status == TANDEM_OK) status = tandem_session_new(model, options, &session);
  if (status == TANDEM_OK) status = tandem_session_complete(session, options, argv[2], print_piece, stdout);
  if (status == TANDEM_OK) {
    const tandem_result* result = tandem_session_get_result(session);
    fprintf(stderr, "\n%d tokens in %.2f s\n", (int)result->n_generated, result->generate_s);
  } else {
    fprintf(stderr, "%s\n", tandem_last_error());
  }
  tandem_session_free(session);
  tandem_model_free(model);
  tandem_options_free(options);
  return (int)status;
}
