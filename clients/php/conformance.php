<?php
// The worker that the conformance test of pipe workers drives: each kind of job is one case.

declare(strict_types=1);

require __DIR__ . '/punctual_worker.php';

use Punctual\{Bytes, Job, Verdict};

// Makes a file, since notes are stored now and then only.
function begun(Job $job): void
{
    file_put_contents($job->json()['begun'], "begun\n");
}

function raw(Job $job, string $bytes): void
{
    $pipe = (fn() => $this->pipe)->call($job);
    (fn() => fwrite($this->socket, $bytes))->call($pipe);
}

// Returns how many calls a forked process is refused.
function forked(Job $job): int
{
    $calls = [
        fn() => $job->cancelled(), fn() => $job->log('a'), fn() => $job->progress(1),
        fn() => $job->enqueue('next', options: ['queue' => 'other']),
    ];
    $pid = pcntl_fork();
    if ($pid !== 0) {
        pcntl_waitpid($pid, $status);
        return pcntl_wexitstatus($status);
    }
    $refused = 0;
    foreach ($calls as $call) {
        try {
            $call();
        } catch (LogicException) {
            $refused++;
        }
    }
    exit($refused);
}

Punctual\work(function (Job $job) {
    echo "this goes to stderr\n";
    switch ($job->kind) {
        case 'result':
            return ['id' => $job->id, 'queue' => $job->queue, 'attempt' => $job->attempt, 'tags' => $job->tags, 'got' => $job->json()];
        case 'length':
            return ['length' => strlen($job->payload), 'sum' => array_sum(unpack('C*', $job->payload))];
        case 'bytes':
            return new Bytes("\x00\xff");
        case 'retry':
            throw Verdict::retry('busy');
        case 'later':
            throw Verdict::retry('busy', after: 60);
        case 'pause':
            throw Verdict::retry('busy', after: 60, pause: true);
        case 'snooze':
            throw Verdict::snooze(60);
        case 'dead':
            throw Verdict::dead('no such user');
        case 'cancel':
            throw Verdict::cancel();
        case 'fail':
            throw new RuntimeException('it broke');
        case 'notes':
            $job->progress(1, 2, 'half');
            $job->log('a line');
            return null;
        case 'enqueue':
            return ['status' => $job->enqueue('next', ['a' => 1], ['queue' => 'other'])['status']];
        case 'refused':
            return $job->enqueue('next', options: ['queue' => '']);
        case 'threads': // It has none.
            $ids = array_map(fn($i) => $job->enqueue('next', $i, ['queue' => 'other'])['id'], range(1, 20));
            return count(array_unique($ids));
        case 'forked':
            return forked($job);
        case 'odd':
            return ['mean' => NAN];
        case 'polite':
            begun($job);
            while (!$job->cancelled()) usleep(10_000);
            throw Verdict::retry("ended early: {$job->cancelled()}");
        case 'deaf':
            pcntl_signal(SIGTERM, SIG_IGN);
            begun($job);
            sleep(600);
            return null;
        case 'slow':
            begun($job);
            while (!file_exists($job->json()['until'])) usleep(10_000);
            return null;
        case 'crash':
            fwrite(STDERR, "last words\n");
            exit(3);
        case 'garbage':
            raw($job, "Hello, world\n");
            sleep(600);
            return null;
        case 'half':
            raw($job, "\x00\x00\x00\x09{");
            exit(0);
    }
});
