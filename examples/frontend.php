<?php
/*
 * A web front end for export-queue in one file: /frontend.php?title=War+and+Peace&format=epub&lang=en
 *
 * Answers at once: the file (200); 202 while it waits or is being made; 404 when there is no such book; 502 when it could not
 * be made, with the reason; 503 when busy. "Busy" (come back) and "broken" (do not) must not look alike.
 *
 * To try it:  EXPORT_QUEUE_CONFIG=/etc/export-queue/config.toml php -S 127.0.0.1:8000 -t examples
 * The user of the web server must be in the group of the queue's state directory; it needs no other right.
 */

declare(strict_types=1);

/** Runs export-queue with a list of arguments, so nothing in a title reaches a shell. Needs PHP 7.4 or newer. */
function export_queue(array $arguments): array
{
    $program = getenv('EXPORT_QUEUE_BIN') ?: 'export-queue';
    $streams = [0 => ['file', '/dev/null', 'r'], 1 => ['pipe', 'w'], 2 => ['file', '/dev/null', 'w']];
    $process = @proc_open(array_merge([$program, '--json'], $arguments), $streams, $pipes);
    if (!is_resource($process)) {
        return [69, ['error' => ['message' => "cannot run $program"]]];
    }
    $said = stream_get_contents($pipes[1]);
    fclose($pipes[1]);
    $code = proc_close($process);
    $answer = json_decode($said, true);
    return is_array($answer) ? [$code, $answer] : [1, ['error' => ['message' => 'no readable answer']]];
}

function http_status(int $code, array $answer): int
{
    switch ($code) {
        case 0: return 200;
        case 3: case 4: case 6: return 202; // queued, started; absent: it ended between two looks, so ask again
        case 5: return ($answer['reason'] ?? '') === 'source_missing' ? 404 : 502;
        case 2: return 400;
        case 75: return 503;
        case 77: return ($answer['reason'] ?? '') === 'denied' ? 403 : 500;
        default: return 500;
    }
}

/** Streams the file. Its path stays openable for some time after the answer (serve_grace): open it at once. */
function send_file(array $answer, string $format): bool
{
    $book = @fopen($answer['path'], 'rb');
    if ($book === false) {
        return false;
    }
    $types = ['epub' => 'application/epub+zip', 'pdf' => 'application/pdf'];
    header('Content-Type: ' . ($types[$format] ?? 'application/octet-stream'));
    header('Content-Length: ' . fstat($book)['size']);
    header("Content-Disposition: attachment; filename*=UTF-8''" . rawurlencode($answer['title'] . '.' . $format));
    fpassthru($book);
    return true;
}

function say(int $status, array $answer): void
{
    $shown = ['state', 'reason', 'message', 'position', 'eta_seconds', 'progress', 'retry_after_seconds', 'error'];
    $wait = $status === 202 ? ($answer['poll_after_seconds'] ?? null) : ($answer['retry_after_seconds'] ?? null);
    http_response_code($status);
    if (in_array($status, [202, 502, 503], true)) {
        header('Retry-After: ' . max(1, (int) round((float) ($wait ?? 5))));
    }
    header('Content-Type: application/json');
    header('Cache-Control: no-store');
    $answer = array_filter(array_intersect_key($answer, array_flip($shown)), fn ($value) => $value !== null);
    echo json_encode((object) $answer, JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES), "\n";
}

function text(string $name, string $otherwise): string
{
    $value = $_GET[$name] ?? $otherwise;
    return is_string($value) ? $value : ''; // ?title[]=x is an array
}

$title = text('title', '');
$format = text('format', 'epub');
$lang = text('lang', '');
if ($title === '' || strpos($title . $format . $lang, "\0") !== false) {
    say(400, ['message' => 'ask for ?title=…&format=…']);
    exit;
}
// A request takes milliseconds: it never makes the book itself. "--" keeps a title from being taken for an option.
$arguments = ['request', "--format=$format"]; // for max_queued_per_client: '--client=' . $_SERVER['REMOTE_ADDR']
if ($lang !== '') {
    $arguments[] = "--lang=$lang";
}
[$code, $answer] = export_queue(array_merge($arguments, ['--', $title]));
$status = http_status($code, $answer);
if ($status === 200 && send_file($answer, $format)) {
    exit;
}
if ($status === 500 || $status === 200) {
    error_log("export-queue ended with $code: " . json_encode($answer));
    [$status, $answer] = [500, ['message' => 'the export service is out of order']];
}
say($status, $answer);
