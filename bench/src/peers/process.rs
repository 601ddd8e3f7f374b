//! Runs a process with a time limit.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Runs a command to its end and returns its output. A failure returns the last line of its error
/// output; a process that exceeds the limit is killed.
pub(super) async fn run(mut command: Command, limit: Duration) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{program} does not start: {error}"))?;
    let (stdout, stderr) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let status = wait(&mut child, limit).await;
    if status.is_none() {
        // Fails harmlessly if the process has just ended.
        let _ = child.kill();
        let _ = child.wait();
    }
    let status = status.ok_or_else(|| format!("it took longer than {} s", limit.as_secs_f64()))?;
    let [stdout, stderr] = [stdout, stderr].map(|reader| reader.join().unwrap_or_default());
    if status.success() {
        return Ok(stdout);
    }
    let complaint = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no error output");
    Err(format!("{status}: {}", complaint.trim()))
}

async fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= deadline {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Reads a pipe in a thread, since a full pipe would block the process.
fn drain(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // Keep the bytes that were read before an error.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn what_a_process_prints_is_given() {
        assert_eq!(run(shell("echo warned >&2; echo printed"), LONG).await, Ok("printed\n".to_owned()));
    }

    #[tokio::test]
    async fn more_than_a_pipe_holds_is_given() {
        let printed = run(shell("head -c 300000 /dev/zero | tr '\\0' x"), LONG).await;
        assert_eq!(printed.map(|printed| printed.len()), Ok(300_000));
    }

    #[tokio::test]
    async fn a_process_that_fails_says_why() {
        let error = run(shell("echo first >&2; echo no such table >&2; exit 3"), LONG).await.unwrap_err();
        assert!(error.contains('3') && error.ends_with(": no such table"), "{error}");
    }

    #[tokio::test]
    async fn a_process_that_takes_too_long_is_killed() {
        let began = Instant::now();
        let error = run(shell("exec sleep 600"), Duration::from_millis(200)).await.unwrap_err();
        assert_eq!(error, "it took longer than 0.2 s");
        assert!(began.elapsed() < LONG, "the process was waited for");
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_named() {
        let error = run(Command::new("no-such-program-here"), LONG).await.unwrap_err();
        assert!(error.starts_with("no-such-program-here does not start: "), "{error}");
    }
}
