ALTER TABLE runs ADD COLUMN colour TEXT NOT NULL DEFAULT 'grey';

UPDATE runs SET colour = 'red' WHERE name = 'old';
