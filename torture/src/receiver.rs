//! A receiver of webhooks that can misbehave: too busy, broken, forbidding, silent, slow, or gone in the middle.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::history::{Scribe, What};

/// The name that its history has.
pub const PROCESS: &str = "broker-receiver";

/// How it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// 200, and the event is taken.
    Right,
    /// 429, with a `Retry-After` of so many seconds.
    TooMany(u64),
    /// Another status.
    Status(u16),
    /// Not at all.
    Hang,
    /// A byte now and then, and never the last one.
    Drip,
    /// It breaks the connection.
    Reset,
}

impl Manner {
    /// One of the bad ones.
    pub fn bad(dice: u64) -> Self {
        match dice % 8 {
            0 => Self::TooMany(1 + dice / 8 % 3),
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

/// How requests are answered: this one of so many misbehaves.
#[derive(Clone, Copy, Debug)]
struct Mood {
    manner: Manner,
    one_in: u64,
}

/// The receiver.
#[derive(Debug)]
pub struct Receiver {
    port: u16,
    mood: watch::Sender<Mood>,
}

impl Receiver {
    /// Starts it; it ends with the runtime. Which events it takes goes into this history.
    pub async fn start(scribe: Scribe) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let mood = watch::Sender::new(Mood { manner: Manner::Right, one_in: 1 });
        let (moods, scribe) = (mood.subscribe(), Arc::new(scribe));
        let count = Arc::new(AtomicU64::new(0));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = serve(stream, moods.clone(), scribe.clone(), count.clone());
                // A client that breaks off is no fault of a process here.
                tokio::spawn(async move { drop(serving.await) });
            }
        });
        Ok(Self { port, mood })
    }

    /// Where events go.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hook", self.port)
    }

    /// From now on one in so many requests is answered like this, the others as they should be.
    pub fn behave(&self, manner: Manner, one_in: u64) {
        self.mood.send_replace(Mood { manner, one_in: one_in.max(1) });
    }
}

async fn serve(
    stream: TcpStream,
    mut mood: watch::Receiver<Mood>,
    scribe: Arc<Scribe>,
    count: Arc<AtomicU64>,
) -> Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(headers) = request(&mut stream).await? {
        let Mood { manner, one_in } = *mood.borrow_and_update();
        let bad = count.fetch_add(1, Ordering::Relaxed).is_multiple_of(one_in);
        match if bad { manner } else { Manner::Right } {
            Manner::Right => {
                let id = headers.get("webhook-id").context("a request without an id")?.clone();
                let seq = headers.get("outbox-seq").and_then(|seq| seq.parse().ok());
                scribe.note(What::Received { id, seq });
                answer(&mut stream, "200 OK", "").await?;
            }
            Manner::TooMany(after) => {
                answer(&mut stream, "429 Too Many Requests", &format!("retry-after: {after}\r\n")).await?;
            }
            Manner::Status(status) => answer(&mut stream, &format!("{status} No"), "").await?,
            Manner::Hang => {
                // Until there is another mood: then the connection breaks.
                mood.changed().await?;
                return Ok(());
            }
            Manner::Drip => loop {
                stream.get_mut().write_all(b"H").await?;
                let pause = tokio::time::timeout(Duration::from_millis(300), mood.changed()).await;
                if pause.is_ok() {
                    return Ok(());
                }
            },
            Manner::Reset => {
                stream.get_mut().set_zero_linger()?;
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Reads a request. The names of its headers are in lower case; nothing if there is none.
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
        tokio::time::timeout(Duration::from_secs(60), reading).await.expect("it answers, or breaks")?;
        Ok(answer)
    }

    #[tokio::test]
    async fn it_takes_what_it_answers_with_200_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let receiver = Receiver::start(Scribe::new(folder.path(), PROCESS).unwrap()).await.unwrap();
        assert!(post(&receiver, "one").await.unwrap().starts_with("HTTP/1.1 200"));
        receiver.behave(Manner::TooMany(2), 1);
        let busy = post(&receiver, "two").await.unwrap();
        assert!(busy.starts_with("HTTP/1.1 429") && busy.contains("retry-after: 2"), "{busy}");
        receiver.behave(Manner::Status(503), 1);
        assert!(post(&receiver, "three").await.unwrap().starts_with("HTTP/1.1 503"));
        receiver.behave(Manner::Reset, 1);
        assert_ne!(post(&receiver, "four").await.ok().as_deref(), Some("HTTP/1.1 200 OK"));
        // It hangs at the first of two: once the other is answered, it has read both.
        receiver.behave(Manner::Hang, 2);
        let (five, six) = (pin!(post(&receiver, "five")), pin!(post(&receiver, "six")));
        let (answered, answer, silent) = match select(five, six).await {
            Either::Left((answer, six)) => ("five", answer, six),
            Either::Right((answer, five)) => ("six", answer, five),
        };
        assert!(answer.unwrap().starts_with("HTTP/1.1 200"));
        receiver.behave(Manner::Right, 1);
        assert!(silent.await.map_or(true, |answer| answer.is_empty()));
        assert!(post(&receiver, "seven").await.unwrap().starts_with("HTTP/1.1 200"));
        let taken: Vec<What> =
            crate::history::read(folder.path()).unwrap().into_iter().map(|line| line.record.what).collect();
        let received = |id: &str| What::Received { id: id.to_owned(), seq: Some(7) };
        assert_eq!(taken, [received("one"), received(answered), received("seven")]);
    }
}
