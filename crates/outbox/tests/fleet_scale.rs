//! Number of connections of a fleet, and delays of a large fleet.
//!
//! A separate test binary, and one test at a time: the tests count the connections of the whole
//! process.

mod common;
#[path = "common/fleet_fixtures.rs"]
mod fleet_fixtures;

use std::collections::HashSet;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use common::{Seen, in_time, numbered, until};
use fleet_fixtures::{Folder, state_of};
use outbox::fleet::{DatabaseState, FleetDatabase};
use outbox::{Context, Event, Fleet, Outbox, StoreOptions, open_store};
use rand::Rng as _;
use sqlx::{Connection as _, PgConnection, Postgres};

type Result<T = ()> = outbox::Result<T>;

/// Sockets and database files that this process has open, by number and name.
fn open_files() -> HashSet<(String, String)> {
    let mut files = HashSet::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        let target = target.to_string_lossy().into_owned();
        if target.starts_with("socket:") || target.ends_with(".db") {
            files.insert((entry.file_name().to_string_lossy().into_owned(), target));
        }
    }
    files
}

/// Number of sockets and database files that are open at one moment: those in two listings, since a
/// file may be closed and another opened during one listing.
fn connections() -> usize {
    open_files().intersection(&open_files()).count()
}

/// Samples the number of connections.
struct ConnectionSampler {
    stop: Arc<AtomicBool>,
    most: Arc<AtomicUsize>,
    samples: Arc<AtomicUsize>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl ConnectionSampler {
    /// Connections that are open now do not count.
    fn start() -> Self {
        let (stop, most, samples) = (Arc::default(), Arc::default(), Arc::default());
        let mut sampler = Self { stop, most, samples, thread: None };
        let (stop, most, samples) = (sampler.stop.clone(), sampler.most.clone(), sampler.samples.clone());
        let before = connections();
        sampler.thread = Some(std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                most.fetch_max(connections().saturating_sub(before), Ordering::Relaxed);
                samples.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        }));
        sampler
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }
}

impl Drop for ConnectionSampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// One test at a time: the tests count the connections of the process.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_databases_are_served_with_ten_connections() -> Result {
    let Ok(url) = std::env::var("OUTBOX_TEST_POSTGRES") else { return Ok(()) };
    let _alone = ONE_AT_A_TIME.lock().await;
    let names: Vec<String> = (0..60).map(|n| format!("pg-{n}")).collect();
    let table = fleet_fixtures::table();
    let database = |name: &String| {
        let table = format!("{table}_{}", name.trim_start_matches("pg-"));
        FleetDatabase::new(name, &url).table(table)
    };
    let fleet = Fleet::builder().databases(names.iter().map(database)).migrate(true).max_connections(10);
    let fleet = fleet.open().await?;
    let before = connections();
    let sampler = ConnectionSampler::start();
    let seen = Seen::default();
    let poll = Duration::from_millis(200);
    let relay =
        fleet.multi_node().no_hot_path().poll_interval(poll).on_type("n", seen.handler()).start().await?;
    in_time(async {
        let mut writers = tokio::task::JoinSet::new();
        for (n, name) in names.iter().enumerate() {
            let outbox: Outbox<Postgres> = fleet.outbox(name)?;
            let n = n as u64 * 5;
            writers.spawn(async move {
                for n in n..n + 5 {
                    outbox.send(numbered("n", n)).await?;
                }
                Ok::<_, outbox::Error>(())
            });
        }
        for written in writers.join_all().await {
            written?;
        }
        seen.reach(300).await;
        relay.stop().await
    })
    .await?;
    seen.assert_each_once(0..300);
    assert!(fleet.connections() > 0, "connections stay open up to the limit");
    fleet.close().await;
    until("all are closed", async || connections() <= before).await;
    assert_eq!(fleet.connections(), 0);
    let most = sampler.most();
    drop(sampler);
    assert!((2..=10).contains(&most), "{most} connections");
    Ok(())
}

/// A PostgreSQL server of this test, which can be suspended.
struct Server {
    folder: tempfile::TempDir,
    postmaster: Child,
    port: u16,
}

impl Server {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let data = folder.path().join("data");
        run(Command::new("chmod").arg("755").arg(folder.path()));
        std::fs::create_dir(&data).unwrap();
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(&data));
        }
        let mut initdb = as_postgres("initdb");
        run(initdb
            .args(["--username=postgres", "--auth=trust", "--no-locale", "--no-sync", "-D"])
            .arg(&data));
        let mut postgres = as_postgres("postgres");
        postgres.arg("-D").arg(&data).args(["-c", &format!("port={port}"), "-c", "unix_socket_directories="]);
        postgres.args(["-c", "listen_addresses=127.0.0.1"]).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Self { folder, postmaster: postgres.spawn().unwrap(), port };
        until("the server accepts connections", async || PgConnection::connect(&server.url()).await.is_ok())
            .await;
        server
    }

    fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Process id of the server: the first line of its own file.
    fn main_process(&self) -> Option<u32> {
        let file = std::fs::read_to_string(self.folder.path().join("data/postmaster.pid")).ok()?;
        file.lines().next()?.parse().ok()
    }

    /// Sends a signal to the server and all its children.
    fn signal(&self, signal: &str) {
        let Some(main) = self.main_process() else { return };
        let mut kill = Command::new("kill");
        kill.arg(signal).arg(main.to_string());
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
            let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1));
            if parent == Some(main.to_string().as_str()) {
                kill.arg(name);
            }
        }
        let _ = kill.status();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal("-CONT");
        if let Some(main) = self.main_process() {
            let _ = Command::new("kill").arg("-QUIT").arg(main.to_string()).status();
        }
        let _ = self.postmaster.wait();
    }
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout.starts_with(b"0\n"))
}

/// PostgreSQL refuses to run as root.
fn as_postgres(program: &str) -> Command {
    let folders = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = folders.map(|folder| folder.path().join("bin")).max();
    let program = newest.map_or_else(|| program.into(), |bin| bin.join(program));
    if !is_root() {
        return Command::new(program);
    }
    // `setpriv` is replaced by the program. `runuser` would be a second process, and would stop for
    // good when the program is stopped.
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]).arg(program).current_dir("/");
    command
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Databases on the test server, dropped with this.
struct Databases {
    server: String,
    names: Vec<String>,
}

impl Databases {
    async fn create(server: &str, count: usize) -> Self {
        let mut conn = PgConnection::connect(server).await.unwrap();
        let mut names = Vec::new();
        for n in 0..count {
            let name = format!("fleet_{}_{n}", std::process::id());
            let create = format!("CREATE DATABASE {name}");
            sqlx::raw_sql(sqlx::AssertSqlSafe(create)).execute(&mut conn).await.unwrap();
            names.push(name);
        }
        Self { server: server.to_owned(), names }
    }

    fn urls(&self) -> Vec<String> {
        let server = &self.server[..self.server.rfind('/').unwrap()];
        self.names.iter().map(|name| format!("{server}/{name}")).collect()
    }

    async fn drop(self) {
        let mut conn = PgConnection::connect(&self.server).await.unwrap();
        for name in &self.names {
            let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
            let _ = sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(&mut conn).await;
        }
    }
}

/// Variable that names the file with the databases of the writing process, one a line.
const WRITE_TO: &str = "OUTBOX_TEST_FLEET_FILE";

fn now_micros() -> u64 {
    u64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap()
}

/// Not a test: the writing process, as another service would be. Ends when it is killed.
#[tokio::test]
#[ignore = "started by fleet_of_250"]
async fn writer_process() {
    let Ok(file) = std::env::var(WRITE_TO) else { return };
    let urls: Vec<String> = std::fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect();
    let options = StoreOptions::default().max_connections(1);
    loop {
        let url = &urls[rand::rng().random_range(0..urls.len())];
        let store = open_store(url, &options).await.unwrap();
        // The time is taken before the write: the measured delay is a little too long, never too
        // short.
        let event = Event::new("timed").json(&now_micros()).build().unwrap();
        store.insert(&[event]).await.unwrap();
        drop(store);
        tokio::time::sleep(Duration::from_millis(rand::rng().random_range(20..80))).await;
    }
}

struct Writer(Child);

impl Writer {
    fn start(file: &std::path::Path) -> Self {
        let mut writer = Command::new(std::env::current_exe().unwrap());
        writer.args(["--ignored", "--exact", "writer_process"]).env(WRITE_TO, file).stdout(Stdio::null());
        Self(writer.spawn().unwrap())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Prints the delays of the events that were delivered since the last call. Returns the maximum.
fn print_delays(phase: &str, delays: &Mutex<Vec<Duration>>) -> Duration {
    let mut delays = std::mem::take(&mut *delays.lock().unwrap());
    delays.sort_unstable();
    assert!(!delays.is_empty(), "{phase}: nothing was delivered");
    let at = |share: f64| delays[((delays.len() - 1) as f64 * share) as usize];
    let most = at(1.0);
    println!("{phase}: {} events, p50 {:?}, p99 {:?}, max {most:?}", delays.len(), at(0.5), at(0.99));
    most
}

fn phase_length() -> Duration {
    let seconds = std::env::var("OUTBOX_TEST_FLEET_SECONDS").ok().and_then(|n| n.parse().ok());
    Duration::from_secs(seconds.unwrap_or(40))
}

/// 200 SQLite files and 50 PostgreSQL databases, one of them on a server that is stopped for half a
/// minute; 20 connections; another process writes.
///
/// `cargo xtask test -- -p outbox --all-features --test fleet_scale -- --ignored fleet_of_250
/// --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes, and a PostgreSQL server of its own"]
async fn fleet_of_250() -> Result {
    let Ok(url) = std::env::var("OUTBOX_TEST_POSTGRES") else { return Ok(()) };
    let _alone = ONE_AT_A_TIME.lock().await;
    let folder = Folder::new();
    let server = Server::start().await;
    let databases = Databases::create(&url, 49).await;
    let lite = (0..200).map(|n| folder.database(&format!("lite-{n:03}")));
    let pg = databases.urls();
    let pg = pg.iter().enumerate().map(|(n, url)| FleetDatabase::new(format!("pg-{n:02}"), url));
    let fleet = Fleet::builder()
        .databases(lite)
        .databases(pg)
        .database("stoppable", server.url())
        .migrate(true)
        .max_connections(20)
        .open()
        .await?;
    let delays: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let (note, seen) = (delays.clone(), Seen::default());
    let sampler = ConnectionSampler::start();
    let began = Instant::now();
    let relay = fleet
        .multi_node()
        .poll_interval(Duration::from_secs(1))
        .lease(Duration::from_secs(20))
        .on_type("n", seen.handler())
        .on_type("timed", move |cx: Context| {
            let written: u64 = cx.payload().unwrap();
            note.lock().unwrap().push(Duration::from_micros(now_micros().saturating_sub(written)));
            async {}
        })
        .start()
        .await?;
    let active = || fleet.databases().iter().filter(|d| d.state == DatabaseState::Active).count();
    until("all are served", async || active() == 250).await;
    println!("250 databases migrated and served after {:?}", began.elapsed());

    let urls = (0..200).map(|n| folder.url(&format!("lite-{n:03}"))).chain(databases.urls());
    let file = folder.file("urls");
    std::fs::write(&file, urls.collect::<Vec<_>>().join("\n")).unwrap();
    let writer = Writer::start(&file);
    tokio::time::sleep(phase_length()).await;
    let idle = print_delays("all servers run", &delays);

    let stoppable: Outbox<Postgres> = fleet.outbox("stoppable")?;
    // Due while the server is stopped.
    stoppable.send_all((0..3).map(|n| numbered("n", n).deliver_after(Duration::from_secs(10)))).await?;
    server.signal("-STOP");
    tokio::time::sleep(Duration::from_secs(30)).await;
    let stopped = print_delays("one server is stopped", &delays);
    println!("meanwhile its state is {:?}", state_of(&fleet, "stoppable"));
    assert!(matches!(state_of(&fleet, "stoppable"), Some(DatabaseState::Failing { .. })));

    server.signal("-CONT");
    let resumed = Instant::now();
    stoppable.send_all((3..6).map(|n| numbered("n", n))).await?;
    in_time(seen.reach(6)).await;
    println!("its events arrived {:?} after it was resumed", resumed.elapsed());
    drop(writer);
    let (most, samples) = (sampler.most(), sampler.samples.load(Ordering::Relaxed));
    println!("at most {most} connections, in {samples} samples");
    relay.stop().await?;
    fleet.close().await;
    databases.drop().await;
    assert!(most <= 20, "{most} connections");
    assert!(idle < Duration::from_secs(2), "{idle:?}");
    assert!(stopped < Duration::from_secs(2), "{stopped:?}");
    Ok(())
}
