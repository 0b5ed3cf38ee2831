-- An older rankwise reads here which one it would have to be.
CREATE TABLE versions (
    version INTEGER PRIMARY KEY,
    since TEXT NOT NULL
);

CREATE TABLE runs (
    serial INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    kind TEXT NOT NULL,
    experiment TEXT NOT NULL,
    source TEXT NOT NULL,
    created REAL NOT NULL,
    started REAL,
    ended REAL,
    state TEXT NOT NULL,
    exit_code INTEGER,
    reason TEXT NOT NULL,
    tags TEXT NOT NULL,
    notices TEXT NOT NULL,
    wanted TEXT,
    spec_text TEXT NOT NULL,
    parent TEXT NOT NULL,
    UNIQUE (name, number)
);

CREATE INDEX children_of_run ON runs (parent, serial) WHERE parent != '';

CREATE INDEX runs_of_experiment ON runs (experiment, serial);

CREATE TABLE tasks (
    run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    key TEXT NOT NULL,
    position INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    exit_code INTEGER,
    attempts INTEGER NOT NULL,
    started REAL,
    ended REAL,
    body TEXT NOT NULL,
    digest TEXT NOT NULL,
    origin TEXT NOT NULL,
    PRIMARY KEY (run, key),
    UNIQUE (run, position)
);

CREATE INDEX tasks_in_state ON tasks (run, state, position);

CREATE INDEX tasks_of_digest ON tasks (digest) WHERE digest != '';

CREATE TABLE attempts (
    run TEXT NOT NULL,
    task TEXT NOT NULL,
    number INTEGER NOT NULL,
    state TEXT NOT NULL,
    marker TEXT NOT NULL UNIQUE,
    folder TEXT NOT NULL,
    job_id TEXT,
    begun REAL NOT NULL,
    submitted REAL,
    started REAL,
    ended REAL,
    exit_code INTEGER,
    signal INTEGER,
    culprit TEXT,
    reason TEXT NOT NULL,
    PRIMARY KEY (run, task, number),
    FOREIGN KEY (run, task) REFERENCES tasks (run, key) ON DELETE CASCADE
);

CREATE TABLE processes (
    run TEXT NOT NULL,
    task TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    node INTEGER NOT NULL,
    rank INTEGER,
    pid INTEGER,
    started REAL,
    ended REAL,
    exit_code INTEGER,
    signal INTEGER,
    peak_memory INTEGER,
    cpu_seconds REAL,
    by_us INTEGER NOT NULL,
    log_lost INTEGER NOT NULL,
    PRIMARY KEY (run, task, attempt, name),
    FOREIGN KEY (run, task, attempt)
        REFERENCES attempts (run, task, number) ON DELETE CASCADE
);

CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    time REAL NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL
);

CREATE INDEX events_of_run ON events (run, id);

-- What belongs together over all runs, so that a trend is one walk along an index.
CREATE TABLE series (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    metric TEXT NOT NULL,
    unit TEXT NOT NULL,
    better TEXT NOT NULL,
    case_name TEXT NOT NULL,
    point TEXT NOT NULL,
    UNIQUE (name, metric, unit, case_name, point)
);

CREATE INDEX series_of_metric ON series (metric);

CREATE TABLE samples (
    series INTEGER NOT NULL REFERENCES series (id),
    run_serial INTEGER NOT NULL REFERENCES runs (serial) ON DELETE CASCADE,
    task TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    trial INTEGER NOT NULL,
    value REAL NOT NULL,
    raw TEXT
);

CREATE INDEX samples_of_series ON samples (series, run_serial, trial);

CREATE INDEX samples_of_run ON samples (run_serial, task, attempt);

CREATE TABLE conditions (
    run_serial INTEGER NOT NULL REFERENCES runs (serial) ON DELETE CASCADE,
    task TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (run_serial, task, attempt)
);

CREATE TABLE results (
    run TEXT NOT NULL,
    task TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    position INTEGER NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    seconds REAL NOT NULL,
    message TEXT NOT NULL,
    PRIMARY KEY (run, task, attempt, position),
    FOREIGN KEY (run, task, attempt)
        REFERENCES attempts (run, task, number) ON DELETE CASCADE
);
