//! A running server.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::kind::Instance;
use crate::plan::Plan;
use crate::port::Ports;
use crate::process::{Process, tail};
use crate::tls::Certificates;

/// A running server. Dropping it ends the process and removes the data.
#[derive(Debug)]
pub struct Server {
    plan: Plan,
    process: Process,
    ports: Ports,
    certificates: Option<Certificates>,
}

impl Server {
    /// [`Plan::nats`], started.
    pub fn nats() -> Self {
        Plan::nats().start()
    }

    /// [`Plan::redis`], started.
    pub fn redis() -> Self {
        Plan::redis().start()
    }

    /// [`Plan::mosquitto`], started.
    pub fn mosquitto() -> Self {
        Plan::mosquitto().start()
    }

    /// [`Plan::rabbitmq`], started.
    pub fn rabbitmq() -> Self {
        Plan::rabbitmq().start()
    }

    /// Starts a server. Tries again with another port if a program has taken the port since it was
    /// reserved.
    pub(crate) fn of(plan: &Plan) -> Self {
        for attempt in 1.. {
            let process = Process::new(plan.kind.name());
            let certificates = plan.tls.map(|_| Certificates::make(&process.folder));
            let ports = Ports::reserve(plan.kind.ports());
            let mut server = Self { plan: plan.clone(), process, ports, certificates };
            plan.kind.configure(&server.instance());
            match server.try_start() {
                Ok(()) => return server,
                Err(error) if attempt == 3 => panic!("{error}"),
                Err(_) => {}
            }
        }
        unreachable!("the third attempt returns or panics")
    }

    /// URL with user and password, if there are any: `nats://127.0.0.1:21234`.
    pub fn url(&self) -> String {
        let user = self.user().map_or(String::new(), |(name, password)| format!("{name}:{password}@"));
        self.url_with(&user)
    }

    /// URL without user and password.
    pub fn bare_url(&self) -> String {
        self.url_with("")
    }

    /// URL with another user.
    pub fn url_as(&self, user: &str, password: &str) -> String {
        self.url_with(&format!("{user}:{password}@"))
    }

    fn url_with(&self, user: &str) -> String {
        let (clear, encrypted) = self.plan.kind.schemes();
        let scheme = if self.plan.tls.is_some() { encrypted } else { clear };
        format!("{scheme}://{user}127.0.0.1:{}{}", self.port(), self.plan.kind.path())
    }

    fn user(&self) -> Option<(&str, &str)> {
        let planned = self.plan.user.as_ref().map(|(name, password)| (name.as_str(), password.as_str()));
        planned.or(self.plan.kind.default_user())
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.ports.first
    }

    /// The data directory.
    pub fn folder(&self) -> &Path {
        &self.process.folder
    }

    /// The server's log until now.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.process.log()).unwrap_or_default()).into_owned()
    }

    /// The certificate authority of the server's certificate. Needs a plan with TLS.
    pub fn ca_file(&self) -> PathBuf {
        self.certificates().ca.clone()
    }

    /// A client certificate and its key. Needs a plan with TLS.
    pub fn client_certificate(&self) -> (PathBuf, PathBuf) {
        self.certificates().client.clone()
    }

    fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("the plan has `tls` or `mutual_tls`")
    }

    /// Stops the server and waits until it has exited. Keeps the data.
    pub fn stop(&mut self) {
        // A frozen process handles SIGTERM only after it is resumed.
        self.process.signal(Signal::CONT);
        self.process.terminate(Signal::TERM);
    }

    /// Kills the server, as in a crash. Keeps the data that was written.
    pub fn kill(&mut self) {
        self.process.terminate(Signal::KILL);
    }

    /// Suspends the server: its connections stay open without replies.
    pub fn freeze(&self) {
        self.process.freeze();
    }

    /// Resumes the server.
    pub fn thaw(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Starts the server again after [`stop`](Self::stop) or [`kill`](Self::kill), on the same port
    /// with the same data. Returns once it accepts connections.
    pub fn start(&mut self) {
        if !self.process.has_exited() {
            return;
        }
        self.try_start().unwrap_or_else(|error| panic!("{error}"));
    }

    fn try_start(&mut self) -> Result<(), String> {
        let command = self.plan.kind.command(&self.instance());
        self.process.spawn(command);
        let deadline = Instant::now() + Duration::from_secs(120);
        let name = self.plan.kind.name();
        let failure = loop {
            if self.process.has_exited() {
                break "ended instead of starting";
            }
            if self.plan.kind.is_ready(&self.instance()) {
                return Ok(());
            }
            if Instant::now() > deadline {
                break "accepted no connection within two minutes";
            }
            sleep(Duration::from_millis(10));
        };
        self.process.terminate(Signal::KILL);
        Err(format!("{name} {failure}; its log ends with:\n    {}", tail(&self.process.log())))
    }

    fn instance(&self) -> Instance<'_> {
        Instance {
            plan: &self.plan,
            folder: &self.process.folder,
            port: self.ports.first,
            certificates: self.certificates.as_ref(),
        }
    }
}
