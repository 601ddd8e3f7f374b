//! A webhook receiver that can misbehave: it rejects, fails, hangs, drips or resets connections.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::history::{Op, Writer};

/// Process name of the receiver's history.
pub const PROCESS: &str = "broker-receiver";

/// How the receiver responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Responds 200 and accepts the event.
    Correct,
    /// Responds 429 with a `Retry-After` of this many seconds.
    TooMany(u64),
    /// Responds with another status.
    Status(u16),
    /// Never responds.
    Hang,
    /// Sends a byte now and then and never completes the response.
    Drip,
    /// Resets the connection.
    Reset,
}

impl Behaviour {
    /// Selects a faulty behaviour.
    pub fn bad(random: u64) -> Self {
        match random % 8 {
            0 => Self::TooMany(1 + random / 8 % 3),
            1 => Self::Status(503),
            2 => Self::Status(500),
            3 => Self::Status(401),
            4 => Self::Status(502),
            5 => Self::Hang,
            6 => Self::Drip,
            _ => Self::Reset,
        }
    }
}

/// The current behaviour: one in `one_in` requests gets `behaviour`, the others are answered
/// correctly.
#[derive(Clone, Copy, Debug)]
struct ResponseMode {
    behaviour: Behaviour,
    one_in: u64,
}

/// A running receiver.
#[derive(Debug)]
pub struct Receiver {
    port: u16,
    mode: watch::Sender<ResponseMode>,
}

impl Receiver {
    /// Starts the receiver, which runs until the runtime ends. Accepted events are recorded in this
    /// history.
    pub async fn start(history: Writer) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let mode = watch::Sender::new(ResponseMode { behaviour: Behaviour::Correct, one_in: 1 });
        let (modes, history) = (mode.subscribe(), Arc::new(history));
        let count = Arc::new(AtomicU64::new(0));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = serve(stream, modes.clone(), history.clone(), count.clone());
                // A client that disconnects is not an error of the receiver.
                tokio::spawn(async move { drop(serving.await) });
            }
        });
        Ok(Self { port, mode })
    }

    /// The URL that events are sent to.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hook", self.port)
    }

    /// From now on one in `one_in` requests gets this behaviour; the others are answered correctly.
    pub fn behave(&self, behaviour: Behaviour, one_in: u64) {
        self.mode.send_replace(ResponseMode { behaviour, one_in: one_in.max(1) });
    }
}

async fn serve(
    stream: TcpStream,
    mut mode: watch::Receiver<ResponseMode>,
    history: Arc<Writer>,
    count: Arc<AtomicU64>,
) -> Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(headers) = request(&mut stream).await? {
        let ResponseMode { behaviour, one_in } = *mode.borrow_and_update();
        let bad = count.fetch_add(1, Ordering::Relaxed).is_multiple_of(one_in);
        match if bad { behaviour } else { Behaviour::Correct } {
            Behaviour::Correct => {
                let id = headers.get("webhook-id").context("a request without an id")?.clone();
                let seq = headers.get("outbox-seq").and_then(|seq| seq.parse().ok());
                history.record(Op::Received { id, seq });
                answer(&mut stream, "200 OK", "").await?;
            }
            Behaviour::TooMany(after) => {
                answer(&mut stream, "429 Too Many Requests", &format!("retry-after: {after}\r\n")).await?;
            }
            Behaviour::Status(status) => answer(&mut stream, &format!("{status} No"), "").await?,
            Behaviour::Hang => {
                // Wait for the next mode, then close the connection.
                mode.changed().await?;
                return Ok(());
            }
            Behaviour::Drip => loop {
                stream.get_mut().write_all(b"H").await?;
                let pause = tokio::time::timeout(Duration::from_millis(300), mode.changed()).await;
                if pause.is_ok() {
                    return Ok(());
                }
            },
            Behaviour::Reset => {
                stream.get_mut().set_zero_linger()?;
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Reads a request and returns its headers with lower-case names; `None` if the connection was
/// closed.
async fn request(stream: &mut BufReader<TcpStream>) -> Result<Option<HashMap<String, String>>> {
    let mut headers = HashMap::new();
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    loop {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(Ok(0), |length| length.parse::<u64>())?;
    tokio::io::copy(&mut stream.take(length), &mut tokio::io::sink()).await?;
    Ok(Some(headers))
}

async fn answer(stream: &mut BufReader<TcpStream>, status: &str, headers: &str) -> Result<()> {
    let answer = format!("HTTP/1.1 {status}\r\n{headers}content-length: 0\r\n\r\n");
    stream.get_mut().write_all(answer.as_bytes()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::future::{Either, select};

    use super::*;

    async fn post(receiver: &Receiver, id: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", receiver.port)).await?;
        let request = format!(
            "POST /hook HTTP/1.1\r\nWebhook-Id: {id}\r\noutbox-seq: 7\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"
        );
        stream.write_all(request.as_bytes()).await?;
        stream.shutdown().await?;
        let mut answer = String::new();
        let reading = stream.read_to_string(&mut answer);
        tokio::time::timeout(Duration::from_secs(60), reading)
            .await
            .expect("the receiver answers or closes the connection")?;
        Ok(answer)
    }

    #[tokio::test]
    async fn it_takes_what_it_answers_with_200_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let receiver = Receiver::start(Writer::new(folder.path(), PROCESS).unwrap()).await.unwrap();
        assert!(post(&receiver, "one").await.unwrap().starts_with("HTTP/1.1 200"));
        receiver.behave(Behaviour::TooMany(2), 1);
        let busy = post(&receiver, "two").await.unwrap();
        assert!(busy.starts_with("HTTP/1.1 429") && busy.contains("retry-after: 2"), "{busy}");
        receiver.behave(Behaviour::Status(503), 1);
        assert!(post(&receiver, "three").await.unwrap().starts_with("HTTP/1.1 503"));
        receiver.behave(Behaviour::Reset, 1);
        assert_ne!(post(&receiver, "four").await.ok().as_deref(), Some("HTTP/1.1 200 OK"));
        // The receiver hangs at the first of two requests: once the other is answered, it has read
        // both.
        receiver.behave(Behaviour::Hang, 2);
        let (five, six) = (pin!(post(&receiver, "five")), pin!(post(&receiver, "six")));
        let (answered, answer, silent) = match select(five, six).await {
            Either::Left((answer, six)) => ("five", answer, six),
            Either::Right((answer, five)) => ("six", answer, five),
        };
        assert!(answer.unwrap().starts_with("HTTP/1.1 200"));
        receiver.behave(Behaviour::Correct, 1);
        assert!(silent.await.map_or(true, |answer| answer.is_empty()));
        assert!(post(&receiver, "seven").await.unwrap().starts_with("HTTP/1.1 200"));
        let taken: Vec<Op> =
            crate::history::read(folder.path()).unwrap().into_iter().map(|line| line.record.op).collect();
        let received = |id: &str| Op::Received { id: id.to_owned(), seq: Some(7) };
        assert_eq!(taken, [received("one"), received(answered), received("seven")]);
    }
}
