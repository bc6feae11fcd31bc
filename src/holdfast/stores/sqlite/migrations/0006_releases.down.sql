DROP TABLE holdfast_installed;
