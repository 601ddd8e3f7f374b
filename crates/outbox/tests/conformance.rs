//! Every store passes the suite, on every database that is there.

mod support;

mod sqlite_file {
    outbox::conformance_tests!(crate::support::Place::sqlite_file().await);
}

mod sqlite_memory {
    outbox::conformance_tests!(crate::support::Place::sqlite_memory().await);
}

#[cfg(feature = "postgres")]
mod postgres {
    outbox::conformance_tests!(crate::support::Place::postgres().await);
}

#[cfg(feature = "mysql")]
mod mariadb {
    outbox::conformance_tests!(crate::support::Place::mariadb().await);
}

#[cfg(feature = "mysql")]
mod mysql {
    outbox::conformance_tests!(crate::support::Place::mysql().await);
}
