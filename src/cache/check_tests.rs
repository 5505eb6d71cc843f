use std::io::{Cursor, Write};
use std::os::unix::fs::{FileTypeExt, symlink};

use proptest::prelude::*;
use rustix::fs::{CWD, FileType, mknodat};
use tempfile::TempDir;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::*;

const MIMETYPE: &[u8] = b"application/epub+zip";
const CONTAINER: &str = "META-INF/container.xml";
const DEFLATED: CompressionMethod = CompressionMethod::Deflated;
const STORED: CompressionMethod = CompressionMethod::Stored;

/// Checks `bytes` as a file of their own.
fn verdict(kind: Kind, bytes: &[u8]) -> Result<u64, Fault> {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("out");
    std::fs::write(&path, bytes).unwrap();
    check(&path, kind, 0).unwrap().map(|checked| checked.bytes)
}

fn assert_whole(kind: Kind, bytes: &[u8]) {
    assert_eq!(verdict(kind, bytes), Ok(bytes.len() as u64));
}

/// Asserts that `bytes` are damaged, for a reason that contains `reason`.
#[track_caller]
fn assert_damaged(kind: Kind, bytes: &[u8], reason: &str) {
    match verdict(kind, bytes) {
        Err(Fault::Invalid(found)) if found.contains(reason) => {}
        other => panic!("{reason:?} was expected, not {other:?}"),
    }
}

/// Checks what `make` leaves at a path.
fn verdict_at(make: impl FnOnce(&Path)) -> Result<u64, Fault> {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("out");
    make(&path);
    check(&path, Kind::Any, 0).unwrap().map(|checked| checked.bytes)
}

fn zip_of(members: &[(&str, &[u8], CompressionMethod)]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes, method) in members {
        let options = SimpleFileOptions::default().compression_method(*method);
        zip.start_file(*name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn an_epub() -> Vec<u8> {
    let text = (0..50_u32).map(|n| (n * n * 7919).to_string());
    let text = text.collect::<Vec<_>>().join("<p>");
    zip_of(&[
        ("mimetype", MIMETYPE, STORED),
        (CONTAINER, b"<container/>", DEFLATED),
        ("text.xhtml", text.as_bytes(), DEFLATED),
        ("picture.png", b"PICTURE", STORED),
    ])
}

fn a_pdf() -> Vec<u8> {
    let body = "%PDF-1.7\n1 0 obj\n<</Type/Catalog>>\nendobj\n";
    let table = "xref\n0 1\n0000000000 65535 f \ntrailer\n<</Size 1/Root 1 0 R>>\n";
    let at = body.len();
    format!("{body}{table}startxref\n{at}\n%%EOF\n").into_bytes()
}

fn a_mobi() -> Vec<u8> {
    mobi_of(&[b"record zero", b"text", b"\xe9\x8e\r\n"])
}

fn mobi_of(records: &[&[u8]]) -> Vec<u8> {
    let mut head = vec![0; 78];
    head[60..68].copy_from_slice(b"BOOKMOBI");
    head[76..].copy_from_slice(&u16::try_from(records.len()).unwrap().to_be_bytes());
    let mut at = head.len() + records.len() * 8;
    for record in records {
        head.extend(u32::try_from(at).unwrap().to_be_bytes());
        head.extend([0; 4]);
        at += record.len();
    }
    head.extend(records.concat());
    head
}

/// Puts `with` over the bytes at the only place where `what` stands.
fn replaced(mut bytes: Vec<u8>, what: &[u8], with: &[u8]) -> Vec<u8> {
    let at = find_last(&bytes, what).unwrap();
    bytes[at..at + with.len()].copy_from_slice(with);
    bytes
}

/// Changes bytes at `offset` in the directory entry of the last member.
fn with_last_entry(mut bytes: Vec<u8>, offset: usize, with: &[u8]) -> Vec<u8> {
    let at = find_last(&bytes, b"PK\x01\x02").unwrap() + offset;
    bytes[at..at + with.len()].copy_from_slice(with);
    bytes
}

/// Changes bytes at `offset` in the end record.
fn with_end(mut bytes: Vec<u8>, offset: usize, with: &[u8]) -> Vec<u8> {
    let at = bytes.len() - 22 + offset;
    bytes[at..at + with.len()].copy_from_slice(with);
    bytes
}

/// A zip64 end record, its locator and the plain record, for a directory of `size` bytes that ends at `at`.
fn zip64_end(members: u64, size: u64, at: u64) -> Vec<u8> {
    let mut end = b"PK\x06\x06".to_vec();
    end.extend(44_u64.to_le_bytes());
    end.extend([45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    end.extend([members, members, size, at - size].map(u64::to_le_bytes).concat());
    end.extend(b"PK\x06\x07\0\0\0\0");
    end.extend(at.to_le_bytes());
    end.extend(b"\x01\0\0\0PK\x05\x06\0\0\0\0");
    end.extend([0xff; 12]);
    end.extend([0; 2]);
    end
}

#[test]
fn whole_documents_of_every_kind_pass() {
    assert_whole(Kind::Epub, &an_epub());
    assert_whole(Kind::Pdf, &a_pdf());
    assert_whole(Kind::Mobi, &a_mobi());
    assert_whole(Kind::Azw3, &a_mobi());
    assert_whole(Kind::Any, b"anything");
}

#[test]
fn one_kind_does_not_pass_for_another() {
    assert_damaged(Kind::Pdf, &an_epub(), "not a PDF");
    assert_damaged(Kind::Epub, &a_pdf(), "not a zip file");
    assert_damaged(Kind::Mobi, &an_epub(), "no MOBI");
    assert_damaged(Kind::Azw3, &a_pdf(), "no MOBI");
}

#[test]
fn a_document_cut_anywhere_is_refused() {
    for (kind, whole) in [
        (Kind::Epub, an_epub()),
        (Kind::Mobi, a_mobi()),
        // The line feed after %%EOF may be missing.
        (Kind::Pdf, a_pdf().trim_ascii_end().to_vec()),
    ] {
        for end in 1..whole.len() {
            let cut = verdict(kind, &whole[..end]);
            assert!(matches!(cut, Err(Fault::Invalid(_))), "{kind:?} cut at {end}: {cut:?}");
        }
    }
}

#[test]
fn a_document_whose_end_was_never_written_is_refused() {
    for (kind, mut bytes) in [(Kind::Epub, an_epub()), (Kind::Pdf, a_pdf()), (Kind::Mobi, a_mobi())] {
        let half = bytes.len() / 2;
        bytes[half..].fill(0);
        assert_damaged(kind, &bytes, "");
    }
}

#[test]
fn the_file_is_handed_over_at_its_start() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("out");
    for (kind, bytes) in [(Kind::Epub, an_epub()), (Kind::Mobi, a_mobi())] {
        std::fs::write(&path, &bytes).unwrap();
        let mut checked = check(&path, kind, 0).unwrap().unwrap();
        let mut read = Vec::new();
        checked.file.read_to_end(&mut read).unwrap();
        assert_eq!(read, bytes);
    }
}

#[test]
fn a_file_that_is_not_there_is_missing() {
    assert_eq!(verdict_at(|_| ()), Err(Fault::Missing));
}

#[test]
fn an_empty_file_is_refused() {
    let empty = |path: &Path| std::fs::write(path, "").unwrap();
    assert_eq!(verdict_at(empty), Err(Fault::Empty));
}

#[test]
fn a_symbolic_link_is_refused_even_to_a_good_file() {
    let link = |path: &Path| symlink("/etc/passwd", path).unwrap();
    assert_eq!(verdict_at(link), Err(Fault::NotRegular));
}

#[test]
fn a_file_with_a_second_name_is_refused() {
    let linked = |path: &Path| {
        std::fs::write(path, "x").unwrap();
        std::fs::hard_link(path, path.with_extension("too")).unwrap();
    };
    assert_eq!(verdict_at(linked), Err(Fault::Linked));
}

#[test]
fn a_fifo_without_a_writer_is_refused_at_once() {
    let fifo = |path: &Path| {
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(path.symlink_metadata().unwrap().file_type().is_fifo());
    };
    assert_eq!(verdict_at(fifo), Err(Fault::NotRegular));
}

#[test]
fn a_directory_and_a_socket_are_refused() {
    let directory = |path: &Path| std::fs::create_dir(path).unwrap();
    assert_eq!(verdict_at(directory), Err(Fault::NotRegular));
    let socket = |path: &Path| drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    assert_eq!(verdict_at(socket), Err(Fault::NotRegular));
}

#[test]
fn a_file_may_be_as_large_as_the_limit_and_no_larger() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("out");
    std::fs::write(&path, "12345").unwrap();
    assert_eq!(check(&path, Kind::Any, 5).unwrap().unwrap().bytes, 5);
    let fault = check(&path, Kind::Any, 4).unwrap().unwrap_err();
    assert_eq!(fault, Fault::TooLarge { bytes: 5, limit: 4 });
}

#[test]
fn every_fault_reads_as_one_short_lower_case_line() {
    for (fault, text) in [
        (Fault::Missing, "no file was written"),
        (Fault::NotRegular, "not a regular file"),
        (Fault::Linked, "the file has other hard links"),
        (Fault::Empty, "the file is empty"),
        (Fault::TooLarge { bytes: 5, limit: 4 }, "5 bytes, the limit is 4"),
        (Fault::Invalid("why".into()), "the file is damaged: why"),
    ] {
        assert_eq!(fault.to_string(), text);
    }
}

#[test]
fn trouble_of_ours_is_not_the_files_fault() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("out");
    std::fs::write(&path, an_epub()).unwrap();
    let file = &File::options().append(true).open(&path).unwrap();
    let bytes = 100;
    for found in [
        epub(View { file, bytes }),
        pdf(View { file, bytes }),
        mobi(View { file, bytes }),
        Err(not_opened(Errno::MFILE)),
        Err(not_opened(Errno::IO)),
    ] {
        assert!(matches!(found, Err(Stop::Ours(_))), "{found:?}");
    }
    assert!(matches!(not_opened(Errno::ACCESS), Stop::Fault(Fault::Invalid(_))));
}

#[test]
fn a_flipped_byte_in_any_member_is_noticed() {
    let stored = replaced(an_epub(), b"PICTURE", b"PICTURF");
    assert_damaged(Kind::Epub, &stored, r#"member "picture.png": invalid checksum"#);
    let whole = an_epub();
    let name = whole.windows(10).position(|word| word == b"text.xhtml");
    let data = name.unwrap() + 10;
    for at in data..data + 20 {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        assert_damaged(Kind::Epub, &bytes, r#"member "text.xhtml""#);
    }
}

#[test]
fn an_epub_must_begin_with_a_plain_mimetype() {
    let reason = "does not begin with a plain mimetype";
    let container: (&str, &[u8], _) = (CONTAINER, b"<c/>", DEFLATED);
    let late = zip_of(&[container, ("mimetype", MIMETYPE, STORED)]);
    assert_damaged(Kind::Epub, &late, reason);
    let packed = zip_of(&[("mimetype", MIMETYPE, DEFLATED), container]);
    assert_damaged(Kind::Epub, &packed, reason);
    let other = zip_of(&[("mimetype", b"application/zip+epub", STORED), container]);
    assert_damaged(Kind::Epub, &other, reason);
    let longer = zip_of(&[("mimetype", b"application/epub+zip\n", STORED), container]);
    assert_damaged(Kind::Epub, &longer, "mimetype is not listed");
}

#[test]
fn an_epub_needs_its_container_file() {
    let bytes = zip_of(&[("mimetype", MIMETYPE, STORED), ("a", b"a", STORED)]);
    assert_damaged(Kind::Epub, &bytes, "META-INF/container.xml is missing");
}

#[test]
fn an_epub_may_have_directories_and_a_comment() {
    let mut zip = ZipWriter::new_append(Cursor::new(an_epub())).unwrap();
    zip.add_directory("empty", SimpleFileOptions::default()).unwrap();
    zip.set_comment("made by hand").unwrap();
    assert_whole(Kind::Epub, &zip.finish().unwrap().into_inner());
}

#[test]
fn bytes_around_an_epub_are_refused() {
    assert_damaged(Kind::Epub, &[an_epub(), b"x".into()].concat(), "something follows");
    assert_damaged(Kind::Epub, &[an_epub(), vec![0; 9000]].concat(), "something follows");
    assert_damaged(Kind::Epub, &[an_epub(), vec![0; 90000]].concat(), "is missing");
    assert_damaged(Kind::Epub, &[b"x".into(), an_epub()].concat(), "not a zip file");
    assert_damaged(Kind::Epub, &[an_epub(), an_epub()].concat(), "misplaced");
}

#[test]
fn an_epub_written_to_a_pipe_with_data_descriptors_passes() {
    let mut zip = ZipWriter::new_stream(Vec::new());
    for (name, bytes, method) in [("mimetype", MIMETYPE, STORED), (CONTAINER, b"<container/>", DEFLATED)] {
        let options = SimpleFileOptions::default().compression_method(method);
        zip.start_file(name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    assert_whole(Kind::Epub, &zip.finish().unwrap().into_inner());
}

#[test]
fn zip64_members_and_end_records_pass() {
    let mut zip = ZipWriter::new(Cursor::new(an_epub()));
    let large = SimpleFileOptions::default().large_file(true);
    let plain = SimpleFileOptions::default().compression_method(STORED);
    zip.start_file("mimetype", plain).unwrap();
    zip.write_all(MIMETYPE).unwrap();
    zip.start_file(CONTAINER, large).unwrap();
    zip.write_all(b"<container/>").unwrap();
    for i in 0..66_000 {
        zip.start_file(i.to_string(), plain).unwrap();
    }
    let bytes = zip.finish().unwrap().into_inner();
    assert_whole(Kind::Epub, &bytes);
    let broken = replaced(bytes, b"PK\x06\x06", b"PK\x06\x05");
    assert_damaged(Kind::Epub, &broken, "zip64 record is broken");
}

#[test]
fn of_two_members_with_one_name_both_are_read() {
    let twins = zip_of(&[
        ("mimetype", MIMETYPE, STORED),
        (CONTAINER, b"<container/>", STORED),
        ("twin-a", b"FIRST", STORED),
        ("twin-b", b"SECOND", STORED),
    ]);
    let name = find_last(&twins, b"twin-b").unwrap();
    let mut twins = replaced(twins, b"twin-a", b"twin-b");
    twins[name + 5] = b'b';
    assert_whole(Kind::Epub, &twins);
    let first = replaced(twins, b"FIRST", b"FIRSD");
    assert_damaged(Kind::Epub, &first, r#"member "twin-b": invalid checksum"#);
}

#[test]
fn a_zip_inside_an_epub_does_not_confuse() {
    let members: &[(&str, &[u8], _)] =
        &[("mimetype", MIMETYPE, STORED), (CONTAINER, b"<container/>", STORED), ("inner.epub", &an_epub(), STORED)];
    let bytes = zip_of(members);
    assert_whole(Kind::Epub, &bytes);
    let cut_in_directory = &bytes[..bytes.len() - 50];
    assert_damaged(Kind::Epub, cut_in_directory, "something follows");
}

#[test]
fn encrypted_members_and_foreign_methods_are_refused() {
    let reason = r#"member "picture.png": is encrypted or not deflated"#;
    assert_damaged(Kind::Epub, &with_last_entry(an_epub(), 8, &[1, 0]), reason);
    for method in [9, 12, 14, 93, 99] {
        let foreign = with_last_entry(an_epub(), 10, &[method, 0]);
        assert_damaged(Kind::Epub, &foreign, reason);
    }
}

#[test]
fn a_member_that_claims_four_gigabytes_is_refused() {
    let claim = 0xffff_fffe_u32.to_le_bytes();
    let packed = with_last_entry(an_epub(), 20, &claim);
    assert_damaged(Kind::Epub, &packed, "overlap or are cut off");
    let unpacked = with_last_entry(an_epub(), 24, &claim);
    assert_damaged(Kind::Epub, &unpacked, "unpack to far more");
}

#[test]
fn a_member_must_have_the_size_it_claims() {
    let less = with_last_entry(an_epub(), 24, &6_u32.to_le_bytes());
    assert_damaged(Kind::Epub, &less, "larger than its declared");
    let more = with_last_entry(an_epub(), 24, &8_u32.to_le_bytes());
    assert_damaged(Kind::Epub, &more, "shorter than it claims");
}

#[test]
fn a_bomb_that_hides_its_size_is_stopped_at_what_it_claims() {
    let bomb = zip_of(&[
        ("mimetype", MIMETYPE, STORED),
        (CONTAINER, b"<container/>", STORED),
        ("bomb", &vec![0; 64 << 20], DEFLATED),
    ]);
    assert_damaged(Kind::Epub, &with_last_entry(bomb, 24, &[9, 0, 0, 0]), "larger than its");
}

#[test]
fn members_that_share_their_bytes_are_refused() {
    let bytes = an_epub();
    let end = bytes.len() - 22;
    let entry = find_last(&bytes, b"PK\x01\x02").unwrap();
    let start = u32::from_le_bytes(bytes[end + 16..end + 20].try_into().unwrap());
    let mut shared = bytes[..end].to_vec();
    for _ in 0..2000 {
        shared.extend(&bytes[entry..end]);
    }
    let at = shared.len() as u64;
    shared.extend(zip64_end(2004, at - u64::from(start), at));
    assert_damaged(Kind::Epub, &shared, "overlap");
}

#[test]
fn a_directory_that_claims_too_many_members_is_refused() {
    let bytes = an_epub();
    let end = bytes.len() - 22;
    for members in [100_001, 1 << 32, u64::MAX] {
        let many = [&bytes[..end], &zip64_end(members, 100, end as u64)].concat();
        assert_damaged(Kind::Epub, &many, "over 100000 members");
    }
    let many = [&bytes[..end], &zip64_end(100_000, 100, end as u64)].concat();
    assert_damaged(Kind::Epub, &many, "misplaced");
}

#[test]
fn lies_about_offsets_are_refused() {
    let big = 0xffff_fff0_u32.to_le_bytes();
    for offset in [0, 1, 30, 58] {
        let start = with_end(an_epub(), 16, &u32::to_le_bytes(offset));
        assert_damaged(Kind::Epub, &start, "misplaced");
    }
    assert_damaged(Kind::Epub, &with_end(an_epub(), 16, &big), "misplaced");
    assert_damaged(Kind::Epub, &with_end(an_epub(), 12, &big), "misplaced");
    assert_damaged(Kind::Epub, &with_end(an_epub(), 8, &[0; 4]), "mimetype is not listed");
    assert_damaged(Kind::Epub, &with_end(an_epub(), 4, &[1]), "split");
    assert_damaged(Kind::Epub, &with_end(an_epub(), 8, &[5, 0, 5, 0]), "header is broken");
    let member = with_last_entry(an_epub(), 42, &big);
    assert_damaged(Kind::Epub, &member, "header is broken");
    let member = with_last_entry(an_epub(), 42, &[1, 0, 0, 0]);
    assert_damaged(Kind::Epub, &member, "header is broken");
}

#[test]
fn a_member_name_cannot_write_to_the_terminal() {
    let bytes = zip_of(&[
        ("mimetype", MIMETYPE, STORED),
        (CONTAINER, b"<container/>", STORED),
        ("\x1b[2J\n", b"PICTURE", STORED),
    ]);
    let bytes = replaced(bytes, b"PICTURE", b"PICTURF");
    assert_damaged(Kind::Epub, &bytes, r#"member "\u{1b}[2J\n": invalid checksum"#);
}

#[test]
fn only_blank_bytes_may_follow_a_pdf() {
    assert_whole(Kind::Pdf, &[a_pdf(), b" \r\n\0".repeat(255)].concat());
    let reason = "does not end with %%EOF";
    assert_damaged(Kind::Pdf, &[a_pdf(), vec![0; 1025]].concat(), reason);
    assert_damaged(Kind::Pdf, &[a_pdf(), vec![0; 9000]].concat(), reason);
    assert_damaged(Kind::Pdf, &[a_pdf(), b"junk".into()].concat(), reason);
    assert_damaged(Kind::Pdf, &[a_pdf(), vec![b'x'; 2000]].concat(), reason);
}

#[test]
fn a_pdf_may_start_after_other_bytes() {
    assert_whole(Kind::Pdf, &[b"\xef\xbb\xbf\n".into(), a_pdf()].concat());
    let far = [vec![b'x'; 1024], a_pdf()].concat();
    assert_damaged(Kind::Pdf, &far, "not a PDF");
}

#[test]
fn a_pdf_may_keep_its_table_in_a_stream() {
    for object in ["7 0 obj\n", "\r\n12 3 obj<<>>", "0000000012 00000 obj"] {
        let bytes = format!("%PDF-1.5\n{object}stream\nstartxref\n9\n%%EOF");
        assert_whole(Kind::Pdf, bytes.as_bytes());
    }
}

#[test]
fn a_pdf_whose_startxref_leads_nowhere_is_refused() {
    for (tail, reason) in [
        ("%%EOF", "missing or points outside"),
        ("startxref\n%%EOF", "missing or points outside"),
        ("startxref\n9999\n%%EOF", "missing or points outside"),
        ("startxref\n99999999999999999999999\n%%EOF", "missing or points"),
        ("startxref\n-9\n%%EOF", "missing or points outside"),
        ("startxref\n9 9\n%%EOF", "missing or points outside"),
        ("startxref\n0\n%%EOF", "does not lead to a table"),
        ("startxref\n10\n%%EOF", "does not lead to a table"),
    ] {
        let bytes = format!("%PDF-1.5\nxref {tail}");
        assert_damaged(Kind::Pdf, bytes.as_bytes(), reason);
    }
    let far = format!("%PDF-1.5\nxref startxref\n9\n{:2048}%%EOF", "");
    assert_damaged(Kind::Pdf, far.as_bytes(), "missing or points outside");
}

#[test]
fn the_first_part_of_a_linearized_pdf_is_not_a_whole_one() {
    let first = "%PDF-1.5\n7 0 obj\nxref\ntrailer\nstartxref\n0\n%%EOF\n";
    assert_damaged(Kind::Pdf, first.as_bytes(), "does not lead to a table");
    let whole = format!("{first}xref\nstartxref\n9\n%%EOF\n");
    assert_whole(Kind::Pdf, whole.as_bytes());
}

#[test]
fn a_mobi_record_table_must_rise_within_the_file() {
    let set = |at: usize, with: &[u8]| {
        let mut bytes = a_mobi();
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    assert_damaged(Kind::Mobi, &set(76, &[0, 0]), "no records");
    assert_damaged(Kind::Mobi, &set(78, &[0; 4]), "out of order");
    assert_damaged(Kind::Mobi, &set(78, &[0xff; 4]), "out of order");
    assert_damaged(Kind::Mobi, &set(94, &[0xff; 4]), "cut off");
    assert_damaged(Kind::Mobi, &set(94, &[0, 0, 0, 120]), "cut off");
    assert_damaged(Kind::Mobi, &set(76, &[0xff; 2]), "");
    assert_damaged(Kind::Mobi, &[a_mobi(), vec![0]].concat(), "cut off");
}

#[test]
fn a_mobi_may_have_an_empty_record_and_sixty_thousand() {
    assert_whole(Kind::Mobi, &mobi_of(&[b"zero", b"", b"\xe9\x8e\r\n"]));
    let mut records: Vec<&[u8]> = vec![b"r"; 60_000];
    records.push(b"\xe9\x8e\r\n");
    assert_whole(Kind::Azw3, &mobi_of(&records));
}

const KINDS: [Kind; 5] = [Kind::Epub, Kind::Pdf, Kind::Mobi, Kind::Azw3, Kind::Any];

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        for kind in KINDS {
            let _ = verdict(kind, &bytes);
        }
    }

    #[test]
    fn arbitrary_bytes_in_a_good_document_never_panic(
        which in 0..3_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let (kind, mut bytes) = match which {
            0 => (Kind::Epub, an_epub()),
            1 => (Kind::Pdf, a_pdf()),
            _ => (Kind::Mobi, a_mobi()),
        };
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = verdict(kind, &bytes);
    }

    #[test]
    fn arbitrary_directories_never_panic(
        entries in prop::collection::vec(any::<u8>(), 0..200),
        end in prop::collection::vec(any::<u8>(), 18),
        members in any::<u64>(), size in any::<u64>(),
    ) {
        let head = an_epub();
        let mut bytes = [&head[..90], b"PK\x01\x02", &entries, b"PK\x05\x06", &end].concat();
        let _ = verdict(Kind::Epub, &bytes);
        let at = (bytes.len() - 22) as u64;
        bytes.truncate(bytes.len() - 22);
        bytes.extend(zip64_end(members % 9, size % 300 % (at + 1), at));
        let _ = verdict(Kind::Epub, &bytes);
    }
}
