//! The corpora of the fuzz targets, replayed: every file through the body of its target, and each with the verdict that its
//! name tells. What fuzzing finds becomes a file here.

use std::fs;
use std::path::Path;

#[path = "../fuzz/bodies.rs"]
mod bodies;

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus");

/// Replays one corpus: `good-…` is accepted, `bad-…` is refused, and anything else only keeps the promises.
fn replay(target: &str, body: fn(&[u8]) -> bool) {
    let entries = fs::read_dir(Path::new(CORPUS).join(target)).expect("a corpus").flatten();
    let mut verdicts = Vec::new();
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let bytes = fs::read(&path).expect("a file of the corpus");
        assert!(bytes.len() < 20_000, "{name} is too large to be kept");
        let is_accepted = body(&bytes);
        assert!(!name.starts_with("good-") || is_accepted, "{target}: {name} is refused");
        assert!(!name.starts_with("bad-") || !is_accepted, "{target}: {name} is accepted");
        verdicts.push(is_accepted);
    }
    assert!(verdicts.contains(&true) && verdicts.contains(&false), "the corpus of {target} shows one side only");
}

#[test]
fn configurations_of_the_corpus_keep_their_promises() {
    replay("config", bodies::config);
}

#[test]
fn names_of_the_corpus_keep_their_promises() {
    replay("names", bodies::names);
}

#[test]
fn words_of_exporters_in_the_corpus_keep_their_promises() {
    replay("progress", bodies::progress);
}

#[test]
fn templates_of_the_corpus_keep_their_promises() {
    replay("template", bodies::template);
}

#[test]
fn epubs_of_the_corpus_keep_their_promises() {
    replay("epub", bodies::epub);
}

#[test]
fn pdfs_of_the_corpus_keep_their_promises() {
    replay("pdf", bodies::pdf);
}

#[test]
fn mobis_of_the_corpus_keep_their_promises() {
    replay("mobi", bodies::mobi);
}
