<?php
// Runs jobs of punctual: `punctual work --exec 'php worker.php' --keep 4`. The protocol is in docs/pipe-workers.md.
//
//     require 'punctual_worker.php';
//     use Punctual\Verdict;
//
//     Punctual\work(function (Punctual\Job $job) {
//         if (!deliver($job->json())) throw Verdict::retry('the receiver is busy', after: 5);
//     });

declare(strict_types=1);

namespace Punctual;

const TEXT_MAX = 4096; // bytes of an error or a line; the store keeps less
const RESULT_MAX = 64 * 1024;

function text(string $value): string
{
    return substr($value, 0, TEXT_MAX);
}

function millis(float $seconds): int
{
    return max(0, (int) round($seconds * 1000));
}

// Ends a run. Any other exception is a retry by the job's backoff.
final class Verdict extends \Exception
{
    private function __construct(public readonly array $frame)
    {
        parent::__construct($frame['error'] ?? $frame['type']);
    }

    // Retries after so many seconds, or by the job's backoff. `pause: true`: its group waits as well, or its queue.
    public static function retry(string $error, ?float $after = null, bool $pause = false): self
    {
        $after = $after === null ? [] : ['after_ms' => millis($after)];
        return new self(['type' => 'retry', 'error' => text($error), 'pause' => $pause] + $after);
    }

    // Runs the job again after so many seconds. No attempt is counted.
    public static function snooze(float $after): self
    {
        return new self(['type' => 'snooze', 'after_ms' => millis($after)]);
    }

    public static function dead(string $error): self
    {
        return new self(['type' => 'dead', 'error' => text($error)]);
    }

    public static function cancel(): self
    {
        return new self(['type' => 'cancel']);
    }
}

// A result of bytes. Any other result is written as JSON.
final class Bytes
{
    public function __construct(public readonly string $bytes) {}
}

// A job and its run. The fields of its frame are properties: `$job->id`, `$job->attempt`, … `$job->payload` has bytes.
// A process that the handler forks may not use it: its calls throw.
final class Job
{
    public function __construct(private Pipe $pipe, private array $frame, public readonly string $payload) {}

    public function __get(string $field): mixed
    {
        return $this->frame[$field] ?? (['tags' => [], 'headers' => []][$field] ?? null);
    }

    public function __isset(string $field): bool
    {
        return $this->__get($field) !== null;
    }

    public function json(): mixed
    {
        return json_decode($this->payload, true, flags: JSON_THROW_ON_ERROR);
    }

    // Why the run has to end soon: "timeout", "cancelled" or "stop"; else null.
    public function cancelled(): ?string
    {
        $this->pipe->look();
        return $this->pipe->cancelled[$this->frame['run']] ?? null;
    }

    public function progress(?int $done = null, ?int $total = null, ?string $message = null): void
    {
        [$done, $total] = array_map(fn($n) => $n === null ? null : max(0, $n), [$done, $total]);
        $message = $message === null ? null : text($message);
        $notes = array_filter(['done' => $done, 'total' => $total, 'message' => $message], fn($note) => $note !== null);
        $this->pipe->write(['type' => 'progress', 'run' => $this->frame['run']] + $notes);
    }

    public function log(string $text): void
    {
        $this->pipe->write(['type' => 'log', 'run' => $this->frame['run'], 'text' => text($text)]);
    }

    // Enqueues a job: the fields of a line of `punctual push --batch`. Returns the store's answer.
    public function enqueue(string $kind, mixed $payload = null, array $options = []): array
    {
        return $this->pipe->enqueue(['kind' => $kind, 'payload' => $payload] + $options);
    }
}

// The frames of a worker and its child.
final class Pipe
{
    public array $cancelled = [];
    private string $buffer = '';
    private array $frames = [];
    private int $calls = 0;
    private int $pid;
    private $socket;
    private $null;

    public function __construct()
    {
        // Frames come and go on a copy of stdin. What is opened next takes its place, so that no other process reads there.
        $this->socket = fopen('php://fd/0', 'r+');
        stream_set_read_buffer($this->socket, 0);
        // An idle worker says nothing for as long as it likes.
        stream_set_timeout($this->socket, 365 * 86_400);
        fclose(STDIN);
        $this->null = fopen('/dev/null', 'r');
        $this->pid = getmypid();
    }

    // Refuses a forked process: it would take what its parent has to read.
    private function own(): void
    {
        if (getmypid() !== $this->pid) throw new \LogicException('a forked process cannot use the job of its parent');
    }

    public function write(array $frame, string $body = ''): void
    {
        $this->own();
        $frame += $body === '' ? [] : ['bytes' => strlen($body)];
        $header = json_encode($frame, JSON_THROW_ON_ERROR | JSON_INVALID_UTF8_SUBSTITUTE);
        $data = pack('N', strlen($header)) . $header . $body;
        for ($sent = 0; $sent < strlen($data); $sent += $n) {
            if (!($n = fwrite($this->socket, substr($data, $sent)))) exit(0);
        }
    }

    // Waits for bytes, and keeps the frames that are whole. Ends the process when its worker is gone.
    private function fill(): void
    {
        $more = fread($this->socket, 65536);
        if ($more === false || $more === '') exit(0);
        $this->buffer .= $more;
        while (strlen($this->buffer) >= 4 && strlen($this->buffer) >= ($start = 4 + unpack('N', $this->buffer)[1])) {
            $frame = json_decode(substr($this->buffer, 4, $start - 4), true, flags: JSON_THROW_ON_ERROR);
            $bytes = $frame['bytes'] ?? 0;
            if (strlen($this->buffer) < $start + $bytes) return;
            $body = substr($this->buffer, $start, $bytes);
            $this->buffer = substr($this->buffer, $start + $bytes);
            if ($frame['type'] === 'cancel') $this->cancelled[$frame['run']] = $frame['reason'];
            else $this->frames[] = [$frame, $body];
        }
    }

    public function look(): void
    {
        $this->own();
        for (;;) {
            [$read, $none] = [[$this->socket], null];
            if (!stream_select($read, $none, $none, 0)) return;
            $this->fill();
        }
    }

    public function next(callable $wanted): array
    {
        $this->own();
        for (;;) {
            foreach ($this->frames as $at => $frame) {
                if ($wanted($frame[0])) {
                    array_splice($this->frames, $at, 1);
                    return $frame;
                }
            }
            $this->fill();
        }
    }

    public function enqueue(array $job): array
    {
        $call = ++$this->calls;
        $this->write(['type' => 'enqueue', 'call' => $call], json_encode($job, JSON_THROW_ON_ERROR));
        [$answer] = $this->next(fn($frame) => ($frame['call'] ?? null) === $call);
        if ($answer['type'] === 'refused') throw new \InvalidArgumentException("{$answer['code']}: {$answer['message']}");
        return $answer;
    }
}

// Runs one job after the other until the worker ends.
function work(callable $handler): void
{
    $pipe = new Pipe();
    $pipe->next(fn($frame) => $frame['type'] === 'hello');
    $pipe->write(['type' => 'ready', 'protocol' => 1]);
    for (;;) {
        [$frame, $payload] = $pipe->next(fn($frame) => in_array($frame['type'], ['job', 'stop'], true));
        if ($frame['type'] === 'stop') return;
        try {
            [$verdict, $body] = done($pipe, $frame, $handler(new Job($pipe, $frame, $payload)));
        } catch (Verdict $e) {
            [$verdict, $body] = [$e->frame, ''];
        } catch (\Throwable $e) {
            fwrite(STDERR, "$e\n");
            [$verdict, $body] = [['type' => 'retry', 'error' => text(get_class($e) . ': ' . $e->getMessage())], ''];
        }
        $pipe->cancelled = [];
        $pipe->write($verdict + ['run' => $frame['run']], $body);
    }
}

// The verdict of a run whose work is done. No result makes it run again.
function done(Pipe $pipe, array $frame, mixed $result): array
{
    if ($result === null) return [['type' => 'done'], ''];
    try {
        $body = $result instanceof Bytes ? $result->bytes : json_encode($result, JSON_THROW_ON_ERROR);
    } catch (\Throwable $e) {
        $lost = text('the result was not kept, because it cannot be written as JSON: ' . get_class($e) . ': ' . $e->getMessage());
        fwrite(STDERR, "job {$frame['id']} is done, but $lost\n");
        $pipe->write(['type' => 'log', 'run' => $frame['run'], 'text' => $lost]);
        return [['type' => 'done'], ''];
    }
    $size = strlen($body);
    if ($size > RESULT_MAX) throw Verdict::dead("the job was done, but its result has $size bytes, and " . RESULT_MAX . ' is the most');
    return [['type' => 'done', 'content_type' => $result instanceof Bytes ? 'application/octet-stream' : 'application/json'], $body];
}
